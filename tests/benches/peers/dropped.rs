//! A guard that is dropped, and the same key taken again at once.

use std::time::Instant;

use lock_runtime::redis::aio::MultiplexedConnection;
use tests::measure::{Sample, Table};

use crate::Bench;
use crate::contenders::{AsyncRedisLock, Contender, Droppable, Key, Product, Rlock};
use crate::report::Report;
use crate::runtimes::Flavour;
use crate::turns::{Entrant, take_turns};
use crate::uncontended::emptied;

const ROUNDS: usize = 9;

struct Turn {
    released: f64,
    dropped: f64,
    failed: usize,
}

#[derive(Clone, Copy)]
enum Ending {
    Released,
    Dropped,
}

/// Cycles a second with one ending, until the server has no key.
async fn cycles<D: Droppable>(
    contender: &mut D,
    ending: Ending,
    cycles: usize,
    server: &mut MultiplexedConnection,
) -> (f64, usize) {
    let (key, mut failed) = (Key::new(1), 0);
    let began = Instant::now();
    for _ in 0..cycles {
        let outcome = match ending {
            Ending::Released => contender.released(&key).await,
            Ending::Dropped => contender.dropped(&key).await,
        };
        failed += usize::from(outcome.is_err());
    }
    emptied(server).await;
    (cycles as f64 / began.elapsed().as_secs_f64(), failed)
}

/// Short runs in turn, of which the medians count: `(runs, cycles in each)` for each ending.
async fn turn<D: Droppable>(
    mut contender: D,
    released: (usize, usize),
    dropped: (usize, usize),
    mut server: MultiplexedConnection,
) -> Turn {
    let (mut explicit, mut silent, mut failed) = (Sample::default(), Sample::default(), 0);
    for run in 0..released.0.max(dropped.0) {
        for (ending, (runs, each), sample) in
            [(Ending::Released, released, &mut explicit), (Ending::Dropped, dropped, &mut silent)]
        {
            if run < runs {
                let (speed, more) = cycles(&mut contender, ending, each, &mut server).await;
                sample.push(speed);
                failed += more;
            }
        }
    }
    Turn { released: explicit.median(), dropped: silent.median(), failed }
}

async fn entrant<D: Droppable>(
    bench: &Bench,
    released: (usize, usize),
    dropped: (usize, usize),
) -> Entrant<Turn> {
    let contender = D::connect(&bench.place).await.expect("a contender connects");
    let server = bench.server.connection().await;
    Entrant::new(D::NAME, move || turn(contender.clone(), released, dropped, server.clone()))
}

async fn measure(bench: Bench) -> Vec<Entrant<Turn>> {
    let many = (7, bench.scaled(60));
    // They find their own lock in the way, and look again a tenth of a second later.
    let few = (1, 3);
    let mut entrants = vec![
        entrant::<Product>(&bench, many, many).await,
        entrant::<Rlock>(&bench, many, few).await,
        entrant::<AsyncRedisLock>(&bench, many, few).await,
    ];
    take_turns(&mut entrants, bench.rounds(ROUNDS)).await;
    entrants
}

/// Runs the row on both runtimes.
pub(crate) fn run(bench: &Bench, report: &mut Report) {
    println!("## A guard that is dropped\n");
    println!(
        "Then the same key is taken again, against a release that is awaited in between. `rslock` does not release on drop.\n"
    );
    let columns =
        ["contender", "runtime", "dropped over released", "released, cycles/s", "dropped, cycles/s"];
    let mut table = Table::new(columns);
    for flavour in Flavour::BOTH {
        for entrant in flavour.run(measure(bench.clone())) {
            let (released, dropped) =
                (entrant.sample(|turn| turn.released), entrant.sample(|turn| turn.dropped));
            let ratio = dropped.over(&released);
            table.row([
                entrant.name.to_owned(),
                flavour.name().to_owned(),
                ratio.spread(3),
                format!("{:.0}", released.median()),
                format!("{:.0}", dropped.median()),
            ]);
            if entrant.name == Product::NAME {
                let row = "a guard dropped, the key taken again";
                report.timed(
                    row,
                    flavour,
                    "≥ 0.5 of explicit release",
                    &ratio.spread(2),
                    ratio.median() >= 0.5,
                );
                report.failures(row, flavour, entrant.turns.iter().map(|turn| turn.failed).sum());
            }
        }
    }
    println!("{}", table.markdown());
}
