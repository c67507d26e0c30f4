//! The time that the compiler takes for many functions of one crate.

use std::fmt::Write as _;
use std::path::Path;

use tests::measure::{Sample, Table};

use crate::annotated::{self, Kind};
use crate::cargo::{Package, Times, ratio};

const FUNCTIONS: usize = 500;

/// What the functions share. It is the same in every crate, an error with a place for that of a lock too.
const PRELUDE: &str = "
#[derive(Debug)]
pub enum Failure { Lock(lock_runtime::LockError), Missing, Refused }

impl From<lock_runtime::LockError> for Failure {
    fn from(error: lock_runtime::LockError) -> Self { Self::Lock(error) }
}

#[derive(Clone, Debug, Default)]
pub struct Order { pub id: u64, pub amount: u64, pub name: String, pub items: Vec<u64> }

pub async fn load(id: u64) -> Result<Order, Failure> {
    tokio::task::yield_now().await;
    if id == 0 { Err(Failure::Missing) } else { Ok(Order { id, amount: id, ..Order::default() }) }
}

pub async fn store(order: &Order) -> Result<(), Failure> {
    tokio::task::yield_now().await;
    if order.amount > order.id { Err(Failure::Refused) } else { Ok(()) }
}
";

/// Small functions as services have them: each awaits, returns early and passes errors on. `@` is their number.
const SHAPES: [&str; 4] = [
    "
pub async fn pay_@(id: u64, amount: u64) -> Result<u64, Failure> {
    if amount == 0 {
        return Ok(0);
    }
    let mut order = load(id).await?;
    order.amount = order.amount.checked_sub(amount).ok_or(Failure::Refused)?;
    store(&order).await?;
    Ok(order.amount)
}
",
    "
pub async fn reserve_@(id: u64, items: &[u64]) -> Result<Vec<u64>, Failure> {
    let mut order = load(id).await?;
    for item in items {
        if order.items.contains(item) {
            return Err(Failure::Refused);
        }
        order.items.push(load(*item).await?.id);
    }
    store(&order).await?;
    Ok(order.items)
}
",
    "
pub async fn rename_@(id: u64, name: String) -> Result<Order, Failure> {
    let order = load(id).await?;
    if order.name == name {
        return Ok(order);
    }
    let order = Order { name, ..order };
    store(&order).await?;
    Ok(order)
}
",
    "
pub async fn cancel_@(id: u64, reason: Option<&str>) -> Result<(), Failure> {
    let order = match load(id).await {
        Err(Failure::Missing) => return Ok(()),
        other => other?,
    };
    let name = reason.map_or_else(|| order.name.clone(), |reason| format!(\"{}: {reason}\", order.name));
    store(&Order { name, amount: 0, ..order }).await
}
",
];

pub(crate) fn run(root: &Path) {
    let packages = Kind::ALL.map(|kind| (annotated::package(root, kind.name()), source(kind)));
    for (command, rounds) in [("check", 5), ("build", 3)] {
        let times = measure(&packages, command, rounds);
        println!("{}", table(command, &times).markdown());
    }
}

fn source(kind: Kind) -> String {
    let mut source = PRELUDE.to_owned();
    for number in 0..FUNCTIONS {
        let function = SHAPES[number % SHAPES.len()].replace('@', &number.to_string());
        let _ = write!(source, "\n{}{function}", kind.attribute());
    }
    source
}

fn measure(packages: &[(Package, String); 3], command: &str, rounds: usize) -> [Times; 3] {
    // The dependencies.
    packages[0].0.cargo(command).expect_success();
    let mut times: [Times; 3] = Default::default();
    for _ in 0..rounds {
        for ((package, source), times) in packages.iter().zip(&mut times) {
            package.write("src/lib.rs", source);
            let run = package.cargo(command).expect_success();
            assert_eq!(run.compiled(), 1, "only the crate itself is measured:\n{}", run.stderr);
            times.push(&run);
        }
    }
    times
}

fn table(command: &str, times: &[Times; 3]) -> Table {
    let mut table = Table::new([
        format!("`cargo {command}` of {FUNCTIONS} functions").as_str(),
        "CPU s",
        "over plain",
        "over `instrument`",
        "wall s",
        "over plain",
        "over `instrument`",
    ]);
    let [plain, instrument, _] = times;
    for (kind, times) in Kind::ALL.iter().zip(times) {
        let cells = |own: &Sample, plain: &Sample, instrument: &Sample| {
            [own.spread(2), ratio(own, plain), ratio(own, instrument)]
        };
        let cpu = cells(&times.cpu, &plain.cpu, &instrument.cpu);
        let wall = cells(&times.wall, &plain.wall, &instrument.wall);
        table.row([kind.title().to_owned()].into_iter().chain(cpu).chain(wall));
    }
    table
}
