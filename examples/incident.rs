//! The accident that `#[redis_lock]` exists for, replayed: first with `SET NX PX` and a bare `DEL`, then
//! with the attribute.
//!
//! ```text
//! cargo run --example incident                           draws both histories
//! cargo run --example incident -- --svg incident.svg     the same picture, also as a file
//! REDIS_URL=redis://127.0.0.1/ cargo run ...             against that server instead of in memory
//! ```
//!
//! Request A takes a lock for 30 s, and its work takes 40 s. At 30 s the key expires and B takes the lock.
//! At 40 s A deletes the key, which is **B's** by now, and C walks in while B is still at work. Time is
//! scaled: a second of the story takes 10 ms.

use std::{
    collections::HashMap,
    env,
    error::Error,
    fmt,
    io::Write,
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use lock_runtime::{LockError, LockManager, redis_lock, set_global_manager};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

type AnyError = Box<dyn Error + Send + Sync>;

const LEASE: Duration = seconds(30);
const PATIENCE: Duration = seconds(60);

// ---- the accident ----------------------------------------------------------------------------------------

async fn pay_order_by_hand(redis: &KeyValue, order_id: u64, request: &Request) -> Result<(), AnyError> {
    let key = format!("{PREFIX}order:{order_id}");
    let token = format!("token-of-{}", request.name());
    while !redis.set_nx_px(&key, &token, LEASE).await? {
        sleep(seconds(1)).await;
    }

    request.enters(&token);
    request.works().await;

    // Taking the lock was one safe step. This is not: whose lock is it that goes here?
    let deleted = redis.del(&key).await?;
    request.released(deleted, true);
    Ok(())
}

// ---- the cure --------------------------------------------------------------------------------------------

#[redis_lock(key = "order:<order_id>", ttl = LEASE, wait = PATIENCE, tag = request.name(), guard = lock)]
async fn pay_order(order_id: u64, request: &Request) -> Result<(), LockError> {
    request.enters(lock.token());
    tokio::select! {
        () = request.works() => {}
        () = lock.lost() => {
            request.doubts();
            // A real body would stop here. This one goes on, so that the two histories can be compared.
            request.works().await;
        }
    }
    Ok(())
}

// ---- the cast --------------------------------------------------------------------------------------------

/// When a request comes, and how long it works. `after` and `until` pin the order of events, so that the
/// story is the same on a slow machine.
struct Part {
    name: char,
    comes: u64,
    works: u64,
    /// Comes only when this request is inside.
    after: Option<usize>,
    /// Works until this request has come.
    until: Option<usize>,
}

const CAST: [Part; 3] = [
    Part { name: 'A', comes: 0, works: 40, after: None, until: Some(2) },
    Part { name: 'B', comes: 28, works: 20, after: None, until: None },
    Part { name: 'C', comes: 36, works: 15, after: Some(1), until: None },
];

/// What became of one request. Times are in seconds of the story, `NOT_YET` before they are known.
#[derive(Clone)]
struct Lane {
    name: char,
    token: String,
    came: f64,
    entered: f64,
    /// When it knew that its lease was over, if it was told at all.
    doubted: f64,
    left: f64,
    released: f64,
    /// The token that its release found in the key.
    found: Option<String>,
    /// Whether its release deleted what it found.
    deleted: bool,
}

const NOT_YET: f64 = f64::INFINITY;

/// The three lanes, and a way to wait for something that happens in another lane.
struct Story {
    begin: Instant,
    lanes: watch::Sender<Vec<Lane>>,
}

impl Story {
    fn begin() -> Arc<Self> {
        let lane = |part: &Part| Lane {
            name: part.name,
            token: String::new(),
            came: NOT_YET,
            entered: NOT_YET,
            doubted: NOT_YET,
            left: NOT_YET,
            released: NOT_YET,
            found: None,
            deleted: false,
        };
        Arc::new(Self { begin: Instant::now(), lanes: watch::Sender::new(CAST.iter().map(lane).collect()) })
    }

    fn second(&self, at: Instant) -> f64 {
        at.duration_since(self.begin).as_secs_f64() / seconds(1).as_secs_f64()
    }

    fn request(self: &Arc<Self>, index: usize) -> Request {
        Request { story: Arc::clone(self), index }
    }

    async fn reaches(&self, index: Option<usize>, time: fn(&Lane) -> f64) {
        if let Some(index) = index {
            let mut lanes = self.lanes.subscribe();
            // It fails only when there is no sender any more, and `self` has it.
            let _ = lanes.wait_for(|lanes| time(&lanes[index]).is_finite()).await;
        }
    }
}

struct Request {
    story: Arc<Story>,
    index: usize,
}

impl Request {
    fn part(&self) -> &'static Part {
        &CAST[self.index]
    }

    fn name(&self) -> char {
        self.part().name
    }

    fn note(&self, note: impl FnOnce(&mut Lane, f64)) {
        let now = self.story.second(Instant::now());
        self.story.lanes.send_modify(|lanes| note(&mut lanes[self.index], now));
    }

    async fn comes(&self) {
        sleep_until(self.story.begin + seconds(self.part().comes)).await;
        self.story.reaches(self.part().after, |lane| lane.entered).await;
        self.note(|lane, now| lane.came = now);
    }

    fn enters(&self, token: &str) {
        self.note(|lane, now| (lane.entered, lane.token) = (now, token.to_owned()));
    }

    /// Ends at the same time even if it is dropped and called again.
    async fn works(&self) {
        let entered = self.story.lanes.borrow()[self.index].entered;
        let end = Duration::from_secs_f64(entered * seconds(1).as_secs_f64()) + seconds(self.part().works);
        sleep_until(self.story.begin + end).await;
        self.story.reaches(self.part().until, |lane| lane.came).await;
        self.note(|lane, now| lane.left = now);
    }

    fn doubts(&self) {
        self.note(|lane, now| lane.doubted = now);
    }

    fn released(&self, found: Option<String>, deleted: bool) {
        self.note(|lane, now| (lane.released, lane.found, lane.deleted) = (now, found, deleted));
    }
}

// ---- the two runs ----------------------------------------------------------------------------------------

/// Only a store that stopped answering makes a run take this long.
const TOO_LONG: Duration = seconds(1000);

async fn run_by_hand(redis: &KeyValue) -> Result<Vec<Lane>, AnyError> {
    let story = Story::begin();
    let request = async |index| {
        let request = story.request(index);
        request.comes().await;
        pay_order_by_hand(redis, 123, &request).await
    };
    timeout(TOO_LONG, async { tokio::try_join!(request(0), request(1), request(2)) }).await??;
    Ok(story.lanes.borrow().clone())
}

async fn run_annotated(reports: &Reports) -> Result<(Vec<Lane>, Vec<Report>), AnyError> {
    reports.take();
    let story = Story::begin();
    let request = async |index| {
        let request = story.request(index);
        request.comes().await;
        pay_order(123, &request).await
    };
    timeout(TOO_LONG, async { tokio::try_join!(request(0), request(1), request(2)) }).await??;

    // The function returned what its body returned. How its release went, the runtime reports as an event.
    let reports = reports.take();
    let mut lanes = story.lanes.borrow().clone();
    for lane in &mut lanes {
        for report in reports.iter().filter(|report| report.field("token") == Some(&lane.token)) {
            let found = match report.field("outcome") {
                Some("released") => Some(lane.token.clone()),
                Some("held_by_other") => report.field("found").map(str::to_owned),
                Some("expired") => None,
                _ => continue,
            };
            lane.released = story.second(report.at);
            lane.deleted = found.as_ref() == Some(&lane.token);
            lane.found = found;
        }
    }
    Ok((lanes, reports))
}

/// The first run deletes what is not its own: with this prefix that is never a real lock.
const PREFIX: &str = "incident-example:";

/// The two commands that the code of the accident uses.
enum KeyValue {
    Memory(Mutex<HashMap<String, (String, Instant)>>),
    Redis(redis::aio::MultiplexedConnection),
}

impl KeyValue {
    /// `SET key token NX PX ttl`
    async fn set_nx_px(&self, key: &str, token: &str, ttl: Duration) -> Result<bool, AnyError> {
        match self {
            Self::Memory(keys) => {
                let mut keys = keys.lock().unwrap_or_else(PoisonError::into_inner);
                let now = Instant::now();
                let free = keys.get(key).is_none_or(|(_, expires)| *expires <= now);
                if free {
                    keys.insert(key.to_owned(), (token.to_owned(), now + ttl));
                }
                Ok(free)
            }
            Self::Redis(connection) => {
                let ms = u64::try_from(ttl.as_millis())?;
                let mut set = redis::cmd("SET");
                set.arg(key).arg(token).arg("NX").arg("PX").arg(ms);
                Ok(set.query_async::<Option<String>>(&mut connection.clone()).await?.is_some())
            }
        }
    }

    /// `DEL key`, and what the key carried (which a bare `DEL` does not say: the GET is for the picture).
    async fn del(&self, key: &str) -> Result<Option<String>, AnyError> {
        match self {
            Self::Memory(keys) => {
                let removed = keys.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
                Ok(removed.filter(|(_, expires)| *expires > Instant::now()).map(|(token, _)| token))
            }
            Self::Redis(connection) => {
                let mut both = redis::pipe();
                both.atomic().get(key).del(key).ignore();
                let (carried,) = both.query_async(&mut connection.clone()).await?;
                Ok(carried)
            }
        }
    }
}

/// The events of the runtime, kept so that they can be shown below the picture.
#[derive(Clone, Default)]
struct Reports(Arc<Mutex<Vec<Report>>>);

struct Report {
    at: Instant,
    level: tracing::Level,
    fields: Vec<(&'static str, String)>,
}

impl Reports {
    fn take(&self) -> Vec<Report> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Report {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|field| field.0 == name).map(|field| field.1.as_str())
    }
}

impl<S: tracing::Subscriber> Layer<S> for Reports {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().target().starts_with("lock_runtime") {
            let (at, level) = (Instant::now(), *event.metadata().level());
            let mut report = Report { at, level, fields: Vec::new() };
            event.record(&mut report);
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(report);
        }
    }
}

impl tracing::field::Visit for Report {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        self.fields.push((field.name(), format!("{value:?}")));
    }

    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        self.fields.push((field.name(), value.to_owned()));
    }

    fn record_f64(&mut self, field: &tracing::field::Field, value: f64) {
        self.fields.push((field.name(), format!("{value:.2}")));
    }
}

// ---- what the lanes say ----------------------------------------------------------------------------------

impl Lane {
    /// Until when it believed that it held the lock.
    fn believed(&self) -> f64 {
        self.doubted.min(self.left)
    }

    /// Until when the key carried its token: its expiry, or the first release that deleted it, be it a
    /// foreign one.
    fn carried(&self, lanes: &[Self]) -> f64 {
        let deletions = lanes.iter().filter(|lane| lane.deleted && lane.found.as_ref() == Some(&self.token));
        deletions.map(|lane| lane.released).fold(self.entered + 30.0, f64::min)
    }

    /// From when to when both are inside.
    fn overlap(&self, other: &Self) -> Option<(f64, f64)> {
        let (from, to) = (self.entered.max(other.entered), self.left.min(other.left));
        (from < to).then_some((from, to))
    }

    /// Whose lock its release found.
    fn found<'a>(&self, lanes: &'a [Self]) -> Option<&'a Self> {
        lanes.iter().find(|lane| self.found.as_ref() == Some(&lane.token))
    }

    fn deleted_foreign(&self, lanes: &[Self]) -> bool {
        self.deleted && self.found(lanes).is_some_and(|found| found.name != self.name)
    }
}

/// A machine that stood still for a moment tells another story, which proves nothing. Only what the
/// requests do of themselves is judged here, not what the lock makes of it.
fn as_planned(lanes: &[Lane]) -> bool {
    const TOLERANCE: f64 = 8.0;
    lanes.iter().zip(&CAST).all(|(lane, part)| {
        let (Ok(comes), Ok(works)) = (u32::try_from(part.comes), u32::try_from(part.works)) else {
            return false;
        };
        (lane.came - f64::from(comes)).abs() < TOLERANCE
            && (lane.left - lane.entered - f64::from(works)).abs() < TOLERANCE
    })
}

/// The story in words, in order of time.
fn tale(lanes: &[Lane]) -> Vec<(f64, String)> {
    let mut tale = Vec::new();
    for lane in lanes {
        let name = lane.name;
        let company = lanes.iter().filter(|other| other.entered < lane.entered && lane.entered < other.left);
        let company: Vec<_> = company.map(|other| other.name.to_string()).collect();
        let while_inside = match company.as_slice() {
            [] => String::new(),
            names => format!(" while {} is inside", names.join(" and ")),
        };
        tale.push((lane.entered, format!("{name} takes the lock{while_inside}")));
        if lane.entered + 30.0 < lane.left {
            let knows = if lane.doubted < NOT_YET { "knows it" } else { "does not know" };
            tale.push((lane.entered + 30.0, format!("{name}'s lease is over: {name} works on, and {knows}")));
        }
        let finds = match lane.found(lanes) {
            None => " and finds no lock".to_owned(),
            Some(found) if found.name == name => " and deletes its own lock".to_owned(),
            Some(found) if lane.deleted => format!(" and deletes {}'s lock", found.name),
            Some(found) => format!(", finds {}'s lock and leaves it alone", found.name),
        };
        tale.push((lane.released, format!("{name} is done{finds}")));
    }
    tale.sort_by(|one, other| one.0.total_cmp(&other.0));
    tale
}

// ---- the picture, in characters --------------------------------------------------------------------------

const LEGEND: [&str; 2] = [
    "               · waits   ═ believes that it holds the lock   ! believes so, and is wrong",
    "               █ inside, its lock in place   ░ inside without: past its lease, or its lock deleted",
];

fn print_history(title: &str, lanes: &[Lane]) {
    out(title);
    out("");
    let end = lanes.iter().map(|lane| lane.left).fold(70.0, f64::max);
    let tens: Vec<_> = (0..10).map(|ten| ten * 10).take_while(|second| f64::from(*second) <= end).collect();
    let numbers: Vec<_> = tens.iter().map(|second| format!("{second:<10}")).collect();
    out(&format!("     seconds   {}", numbers.concat().trim_end()));
    out(&format!("               {}", vec!["|"; tens.len()].join("         ")));

    let mut key = Row::default();
    for lane in lanes {
        key.fill(lane.entered, lane.carried(lanes), lane.name);
    }
    key.print("   the lock is");
    for lane in lanes {
        let carried = lane.carried(lanes);
        let mut row = Row::default();
        row.fill(lane.came, lane.entered, '·');
        row.fill(lane.entered, lane.believed().min(carried), '═');
        row.fill(carried, lane.believed(), '!');
        row.print(&format!(" {}  believes", lane.name));
        let mut row = Row::default();
        row.fill(lane.entered, lane.left.min(carried), '█');
        row.fill(carried, lane.left, '░');
        row.print("    is inside");
    }
    let mut row = Row::default();
    for (one, other) in pairs(lanes) {
        if let Some((from, to)) = one.overlap(other) {
            row.fill(from, to, '^');
        }
    }
    row.print("   two inside");
    out("");
    for (at, line) in tale(lanes) {
        out(&format!("        {at:>4.1}   {line}"));
    }
    out("");
}

/// One character for each second.
#[derive(Default)]
struct Row(Vec<char>);

impl Row {
    fn fill(&mut self, from: f64, to: f64, with: char) {
        for column in 0..100_u32 {
            let middle = f64::from(column) + 0.5;
            if from <= middle && middle < to {
                let index = column as usize;
                self.0.resize(self.0.len().max(index + 1), ' ');
                self.0[index] = with;
            }
        }
    }

    fn print(&self, label: &str) {
        out(format!("{label:<15}{}", self.0.iter().collect::<String>()).trim_end());
    }
}

fn pairs(lanes: &[Lane]) -> impl Iterator<Item = (&Lane, &Lane)> {
    lanes.iter().enumerate().flat_map(|(at, one)| lanes[at + 1..].iter().map(move |other| (one, other)))
}

/// Not `println!`, which panics when its reader has gone (`| head`).
fn out(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

// ---- the picture, as a file ------------------------------------------------------------------------------

mod svg {
    use std::path::Path;

    use plotters::coord::Shift;
    use plotters::prelude::*;
    use plotters::style::text_anchor::{HPos, Pos, VPos};

    use super::{AnyError, Lane, pairs};

    type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

    const WIDTH: i32 = 1120;
    const PANEL: i32 = 340;
    const LEGEND: i32 = 80;
    const LEFT: i32 = 156;
    const PER_SECOND: f64 = 10.6;
    const LANE: i32 = 62;
    const INK: RGBColor = RGBColor(0x26, 0x2b, 0x33);
    const PALE: RGBColor = RGBColor(0x8a, 0x93, 0xa0);
    const GRID: RGBColor = RGBColor(0xe3, 0xe6, 0xea);
    const RED: RGBColor = RGBColor(0xd0, 0x21, 0x2f);
    const GREEN: RGBColor = RGBColor(0x1d, 0x7d, 0x46);

    fn color(name: char) -> RGBColor {
        match name {
            'A' => RGBColor(0x35, 0x6c, 0xb1),
            'B' => RGBColor(0xe0, 0x85, 0x1b),
            _ => RGBColor(0x3d, 0x96, 0x7d),
        }
    }

    pub(super) fn draw(file: &Path, panels: [(&str, &[Lane]); 2]) -> Result<(), AnyError> {
        let height = 2 * PANEL + LEGEND;
        let root = SVGBackend::new(file, (WIDTH.unsigned_abs(), height.unsigned_abs())).into_drawing_area();
        root.fill(&WHITE)?;
        for (top, (title, lanes)) in [0, PANEL].into_iter().zip(panels) {
            panel(&root, top, title, lanes)?;
        }
        legend(&root, 2 * PANEL)?;
        root.present()?;
        Ok(())
    }

    fn panel(root: &Area<'_>, top: i32, title: &str, lanes: &[Lane]) -> Result<(), AnyError> {
        let key = top + 74;
        let first = key + 34;
        let bottom = first + 3 * LANE - 8;
        text(root, title, (24, top + 30), 19, INK, HPos::Left)?;
        for second in (0..=80).step_by(10) {
            let x = x(f64::from(second));
            line(root, (x, key - 8), (x, bottom), GRID)?;
            text(root, &format!("{second} s"), (x, bottom + 12), 12, PALE, HPos::Center)?;
        }

        // What is wrong is shaded first, so that everything else is drawn over it.
        for (one, other) in pairs(lanes) {
            if let Some((from, to)) = one.overlap(other) {
                // Whoever came first is late by its own doing, or was robbed of its lock.
                let robbed = one.carried(lanes) < one.entered + 30.0;
                let knows = if one.doubted.is_finite() { " knows that it" } else { "" };
                let (ink, label) = if robbed {
                    (RED, format!("{} and {} at once", one.name, other.name))
                } else {
                    (PALE, format!("{}{knows} is late", one.name))
                };
                shade(root, (x(from), key - 8), (x(to), bottom + 24), ink)?;
                text(root, &label, (x(f64::midpoint(from, to)), bottom + 34), 12, ink, HPos::Center)?;
            }
        }

        text(root, "the lock is", (LEFT - 14, key + 8), 13, INK, HPos::Right)?;
        for lane in lanes {
            let (from, to) = (x(lane.entered), x(lane.carried(lanes)));
            bar(root, (from, key), (to, key + 17), color(lane.name))?;
            text(
                root,
                &format!("{}'s", lane.name),
                (i32::midpoint(from, to), key + 8),
                12,
                WHITE,
                HPos::Center,
            )?;
        }
        for (top, lane) in (first..).step_by(LANE.unsigned_abs() as usize).zip(lanes) {
            request(root, top, lane, lanes)?;
        }
        for lane in lanes {
            if let Some(found) = lane.found(lanes).filter(|found| found.name != lane.name) {
                let (ink, what) =
                    if lane.deleted { (RED, "deletes") } else { (GREEN, "finds, but does not delete,") };
                let at = x(lane.released);
                line(root, (at, key - 14), (at, bottom), ink)?;
                let label = format!("{} {what} {}'s lock", lane.name, found.name);
                text(root, &label, (at, key - 22), 12, ink, HPos::Center)?;
            }
        }
        Ok(())
    }

    fn request(root: &Area<'_>, top: i32, lane: &Lane, lanes: &[Lane]) -> Result<(), AnyError> {
        let ink = color(lane.name);
        let (belief, inside) = (top + 4, top + 17);
        text(root, &format!("request {}", lane.name), (24, top + 20), 15, ink, HPos::Left)?;
        text(root, "believes", (LEFT - 14, belief + 3), 11, PALE, HPos::Right)?;
        text(root, "inside", (LEFT - 14, inside + 11), 11, PALE, HPos::Right)?;

        for dot in (x(lane.came)..x(lane.entered) - 3).step_by(8) {
            bar(root, (dot, belief + 1), (dot + 3, belief + 4), PALE)?;
        }
        let lost = lane.carried(lanes);
        let (entered, believed, left) = (lane.entered, lane.believed(), lane.left);
        bar(root, (x(entered), belief), (x(believed.min(lost)), belief + 6), ink)?;
        if lost < believed {
            bar(root, (x(lost), belief), (x(believed), belief + 6), RED)?;
        }
        bar(root, (x(entered), inside), (x(left.min(lost)), inside + 22), ink)?;
        if lost < left {
            hatched(root, (x(lost), inside), (x(left), inside + 22), ink)?;
        }
        Ok(())
    }

    fn legend(root: &Area<'_>, top: i32) -> Result<(), AnyError> {
        let ink = color('A');
        let (row, next) = (top + 14, top + 44);
        for dot in [24, 32, 40, 48] {
            bar(root, (dot, row + 7), (dot + 3, row + 10), PALE)?;
        }
        text(root, "waits for the lock", (62, row + 9), 12, INK, HPos::Left)?;
        bar(root, (240, row + 6), (266, row + 12), ink)?;
        text(root, "believes that it holds the lock", (276, row + 9), 12, INK, HPos::Left)?;
        bar(root, (560, row + 6), (586, row + 12), RED)?;
        text(root, "believes so, and is wrong", (596, row + 9), 12, INK, HPos::Left)?;
        bar(root, (240, next), (266, next + 18), ink)?;
        text(root, "inside, its lock in place", (276, next + 9), 12, INK, HPos::Left)?;
        hatched(root, (560, next), (586, next + 18), ink)?;
        text(
            root,
            "inside without: past its lease, or its lock deleted",
            (596, next + 9),
            12,
            INK,
            HPos::Left,
        )
    }

    #[expect(clippy::cast_possible_truncation, reason = "a picture is some thousand pixels wide")]
    fn x(second: f64) -> i32 {
        LEFT + (second.clamp(0.0, 90.0) * PER_SECOND).round() as i32
    }

    fn text(
        root: &Area<'_>,
        text: &str,
        at: (i32, i32),
        size: i32,
        ink: RGBColor,
        anchor: HPos,
    ) -> Result<(), AnyError> {
        let style = ("sans-serif", size).into_font().color(&ink).pos(Pos::new(anchor, VPos::Center));
        Ok(root.draw(&Text::new(text.to_owned(), at, style))?)
    }

    fn line(root: &Area<'_>, from: (i32, i32), to: (i32, i32), ink: RGBColor) -> Result<(), AnyError> {
        Ok(root.draw(&PathElement::new([from, to], ink.stroke_width(1)))?)
    }

    fn bar(root: &Area<'_>, from: (i32, i32), to: (i32, i32), ink: RGBColor) -> Result<(), AnyError> {
        Ok(root.draw(&Rectangle::new([from, to], ink.filled()))?)
    }

    fn shade(root: &Area<'_>, from: (i32, i32), to: (i32, i32), ink: RGBColor) -> Result<(), AnyError> {
        Ok(root.draw(&Rectangle::new([from, to], ink.mix(0.13).filled()))?)
    }

    /// A pale bar with an outline and slanted strokes, cut at its right end.
    fn hatched(root: &Area<'_>, from: (i32, i32), to: (i32, i32), ink: RGBColor) -> Result<(), AnyError> {
        bar(root, from, to, WHITE)?;
        shade(root, from, to, ink)?;
        let height = to.1 - from.1;
        for start in (from.0 - height + 6..to.0).step_by(7) {
            let low = (from.0 - start).max(0);
            let high = (to.0 - start).min(height);
            line(root, (start + low, to.1 - low), (start + high, to.1 - high), ink)?;
        }
        Ok(root.draw(&Rectangle::new([from, to], ink.stroke_width(1)))?)
    }
}

// ---- setting up, and the verdict -------------------------------------------------------------------------

const HELP: &str = "\
Replays the accident of a lock that was released by someone who no longer held it.

  incident               draw both histories; exit 0 if the accident happens without the attribute only
  incident --svg FILE    draw them into FILE as well
  incident --help        this text

REDIS_URL, if set, names the Redis server to use; without it the locks live in this process.";

enum Mode {
    Run { svg: Option<PathBuf> },
    Help,
}

fn mode(arguments: &[String]) -> Result<Mode, String> {
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => Ok(Mode::Run { svg: None }),
        ["--svg", file] => Ok(Mode::Run { svg: Some(file.into()) }),
        ["--help" | "-h"] => Ok(Mode::Help),
        other => Err(format!("cannot read the arguments {other:?}; try --help")),
    }
}

// One thread is enough for three requests, and keeps their timers in order.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "incident: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the two histories are as they must be.
async fn run() -> Result<bool, AnyError> {
    let Mode::Run { svg } = mode(&env::args().skip(1).collect::<Vec<_>>())? else {
        out(HELP);
        return Ok(true);
    };
    let reports = Reports::default();
    tracing_subscriber::registry().with(reports.clone()).init();

    let builder = LockManager::builder().prefix(PREFIX);
    let (manager, redis) = if let Ok(url) = env::var("REDIS_URL") {
        let connection = redis::Client::open(url.as_str())?.get_multiplexed_async_connection().await?;
        (builder.connect(&url).await?, KeyValue::Redis(connection))
    } else {
        (builder.in_memory(), KeyValue::Memory(Mutex::default()))
    };
    set_global_manager(manager.clone())?;

    let mut left = 10;
    let (naive, (locked, reports)) = loop {
        let runs = (run_by_hand(&redis).await?, run_annotated(&reports).await?);
        left -= 1;
        if left == 0 || (as_planned(&runs.0) && as_planned(&runs.1.0)) {
            break runs;
        }
        out("(The machine stood still for a moment; once more.)\n");
    };
    manager.shutdown(seconds(100)).await?;

    let titles = [
        "Without the attribute: SET order:123 NX PX 30000, then a bare DEL",
        "With #[redis_lock(key = \"order:<order_id>\", ttl = \"30s\", wait = \"60s\")]",
    ];
    print_history(titles[0], &naive);
    print_history(titles[1], &locked);
    LEGEND.into_iter().for_each(out);
    out("");
    print_reports(&reports);
    if let Some(file) = &svg {
        svg::draw(file, [(titles[0], &naive), (titles[1], &locked)])?;
        out(&format!("The picture is in {}.\n", file.display()));
    }
    Ok(verdict(&naive, &locked))
}

fn print_reports(reports: &[Report]) {
    out("What the runtime reported meanwhile:");
    for report in reports.iter().filter(|report| report.level <= tracing::Level::INFO) {
        out(&format!("  {:>4} {}", report.level, report.field("message").unwrap_or_default()));
        let fields = report.fields.iter().filter(|field| field.0 != "message");
        let fields: Vec<_> = fields.map(|(name, value)| format!("{name}={value}")).collect();
        for line in fields.chunks(3) {
            out(&format!("         {}", line.join("  ")));
        }
    }
    out("");
}

/// Whether the accident happened by hand, and did not with the attribute.
fn verdict(naive: &[Lane], locked: &[Lane]) -> bool {
    let accident = naive[0].deleted_foreign(naive)
        && naive[0].found(naive).is_some_and(|found| found.name == 'B')
        && naive[1].overlap(&naive[2]).is_some();
    let [a, b, c] = locked else { return false };
    let prevented = !a.deleted
        && a.found(locked).is_some_and(|found| found.name == 'B')
        // That B and C found their own tokens at the end shows that nobody touched them before.
        && [b, c].into_iter().all(|lane| lane.deleted && lane.found.as_ref() == Some(&lane.token))
        && b.overlap(c).is_none();
    out(if accident {
        "Without: A deleted B's lock, and C came in while B was inside."
    } else {
        "Without: the accident did not happen this time. That proves nothing."
    });
    out(if prevented {
        "With:    A found B's lock and left it alone, and C came in when B had gone. (No release can undo that A\n\
         \x20        worked past its lease, beside B: that takes a longer ttl, and the warning above says so.)"
    } else {
        "With:    NOT as it must be: see above."
    });
    accident && prevented
}

const fn seconds(of_the_story: u64) -> Duration {
    Duration::from_millis(10 * of_the_story)
}
