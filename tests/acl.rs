//! The Redis account of the README: everything works under it, it can do nothing else, and it has nothing too much.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use lock_runtime::{LockError, LockManager, ReleaseOutcome, StoreErrorKind, redis, redis_lock};
use tests::monitor::{Executed, Monitor};
use tests::server::RedisServer;
use tests::{PATIENCE, clock, eventually};

const READMES: [&str; 2] = [include_str!("../README.md"), include_str!("../README.zh-CN.md")];
const TTL: Duration = Duration::from_secs(60);

/// What a README says about the account.
#[derive(Debug, PartialEq)]
struct Account {
    /// `ACL SETUSER …`, word by word.
    command: Vec<&'static str>,
    /// The same for what shared, counted and fenced locks need in addition.
    extra: Vec<&'static str>,
    user: &'static str,
    password: &'static str,
    /// The commands that it may run: `set`, `script|load`.
    granted: BTreeSet<&'static str>,
    /// Those that the text offers to add: of the form `+client|tracking`.
    optional: BTreeSet<&'static str>,
}

impl Account {
    fn of(readme: &'static str) -> Self {
        let lines: Vec<_> = readme.lines().filter(|line| line.starts_with("ACL SETUSER ")).collect();
        let [command, extra] = lines[..] else { panic!("the README has two commands: {lines:?}") };
        let words = |line: &'static str| line.split_whitespace();
        let is_command = |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || c == '|');
        let user = words(command).nth(2).expect("a user");
        assert_eq!(words(extra).nth(2), Some(user), "both are about one account");
        Self {
            command: words(command).collect(),
            extra: words(extra).collect(),
            user,
            password: words(command).find_map(|word| word.strip_prefix('>')).expect("a password"),
            granted: granted(&words(command).collect::<Vec<_>>()),
            optional: readme
                .split("`+")
                .skip(1)
                .filter_map(|text| text.split_once('`'))
                .map(|(name, _)| name)
                .filter(is_command)
                .collect(),
        }
    }

    /// The same account with what shared, counted and fenced locks need in addition.
    fn with_extra(mut self) -> Self {
        let more = granted(&self.extra);
        assert!(more.is_disjoint(&self.granted), "nothing is granted twice");
        self.granted.extend(more);
        self
    }

    /// A server with this account, and its log of denials still empty.
    async fn server(&self) -> RedisServer {
        let server = RedisServer::start().await;
        server.call::<()>(&self.command).await;
        server
    }

    async fn manager(&self, server: &RedisServer, prefix: &str) -> LockManager {
        // As patient as the test: how soon a call gives up is another test's question.
        let builder = LockManager::builder().response_timeout(PATIENCE).connect_timeout(PATIENCE);
        builder.prefix(prefix).connect(&server.url_with(self.user, self.password)).await.unwrap()
    }

    /// Whether the text offers this command, which a server that knows no subcommands calls by its first word.
    fn offers(&self, denied: &str) -> bool {
        self.optional.iter().any(|name| *name == denied || name.split('|').next() == Some(denied))
    }
}

/// The commands that the words of an ACL allow.
fn granted(words: &[&'static str]) -> BTreeSet<&'static str> {
    words.iter().filter_map(|word| word.strip_prefix('+')).collect()
}

/// What the server has denied to anybody: the command or the key, in order of the first time.
async fn denied(server: &RedisServer) -> Vec<String> {
    let log: Vec<HashMap<String, redis::Value>> = server.call(&["ACL", "LOG"]).await;
    let object = |entry: &HashMap<_, _>| redis::from_redis_value_ref(&entry["object"]).expect("a text");
    log.iter().rev().map(object).collect()
}

#[redis_lock(key = "order:<id>", ttl = "60s", wait = wait, manager = locks, guard = lock)]
async fn pay(locks: &LockManager, id: u64, wait: Duration) -> Result<String, LockError> {
    Ok(lock.token().to_owned())
}

#[redis_lock(
    key = "stock:<sku>", for sku in ["b", "a"], ttl = "60s", wait = PATIENCE, hold_after_ok = "20ms", manager = locks
)]
async fn reserve(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

/// Everything a manager does with its server, but for shared, counted and fenced locks.
async fn use_all(account: &Account, server: &RedisServer, is_told_of_changes: bool) -> Vec<Executed> {
    let monitor = Monitor::attach(server);
    let locks = account.manager(server, "lock:").await;
    let take = |key: &str| locks.lock(key).ttl(TTL);

    pay(&locks, 1, Duration::ZERO).await.unwrap();
    assert!(!server.exists("lock:order:1").await);

    // Busy.
    server.set_px("lock:order:2", "someone else", 60_000).await;
    assert!(pay(&locks, 2, Duration::ZERO).await.unwrap_err().is_busy());

    // Busy, and had in the end.
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { pay(&locks, 2, PATIENCE).await }
    });
    let watches =
        |command: &Executed| command.is("EVALSHA") && command.args.contains(&"lock:order:2".to_owned());
    monitor.wait_for(watches).await;
    assert!(server.del("lock:order:2").await);
    waiting.await.unwrap().unwrap();

    // Extended, by hand and by itself, and dropped.
    let guard = take("extended").acquire().await.unwrap();
    guard.extend(TTL * 2).await.unwrap();
    drop(guard);
    eventually("the dropped guard's key is gone", PATIENCE, async || !server.exists("lock:extended").await)
        .await;
    let guard = locks.lock("renewed").ttl(Duration::from_secs(3)).renew().acquire().await.unwrap();
    let renews =
        |command: &Executed| command.is("PEXPIRE") && command.args.contains(&"lock:renewed".to_owned());
    monitor.wait_for(renews).await;
    assert_eq!(guard.release().await, ReleaseOutcome::Released);

    // Several at once, and kept for a while.
    reserve(&locks).await.unwrap();
    reserve(&locks).await.unwrap();
    let several = || locks.lock_all(["stock:a", "stock:b"]).ttl(TTL).wait(PATIENCE);
    let guard = several().hold_at_least(Duration::from_millis(20)).acquire().await.unwrap();
    guard.extend(TTL * 2).await.unwrap();
    assert_eq!(guard.release().await, ReleaseOutcome::Released);
    several().acquire().await.unwrap().release().await;

    // Lost: told so when the key is deleted, or known by the clock.
    if is_told_of_changes {
        let guard = take("lost").acquire().await.unwrap();
        let asks = |command: &Executed| command.is("GET") && command.args.contains(&"lock:lost".to_owned());
        let deleted = async {
            monitor.wait_for(asks).await;
            server.del("lock:lost").await;
        };
        let told = clock::timeout(PATIENCE, async { tokio::join!(guard.lost(), deleted) });
        told.await.expect("the server tells of a key that is deleted");
        assert_eq!(guard.release().await, ReleaseOutcome::NotHeld);
    } else {
        let guard = locks.lock("lost").ttl(Duration::from_secs(1)).acquire().await.unwrap();
        guard.lost().await;
        // Its key may be there for a moment more.
        guard.release().await;
    }

    // On a server that has forgotten the scripts.
    server.script_flush().await;
    pay(&locks, 3, Duration::ZERO).await.unwrap();
    server.script_flush().await;
    let guard = take("extended").acquire().await.unwrap();
    guard.extend(TTL * 2).await.unwrap();
    assert_eq!(guard.release().await, ReleaseOutcome::Released);

    // On a new connection, after the old one has ended.
    let ended: usize = server.call(&["CLIENT", "KILL", "USER", account.user]).await;
    assert_ne!(ended, 0);
    pay(&locks, 4, Duration::ZERO).await.unwrap();

    assert_eq!(server.keys("*").await, Vec::<String>::new());
    monitor.settled().await
}

/// Everything a manager does with shared, counted and fenced locks.
async fn use_extra(account: &Account, server: &RedisServer) -> Vec<Executed> {
    let monitor = Monitor::attach(server);
    let locks = account.manager(server, "lock:").await;
    let take = |key: &str| locks.lock(key).ttl(TTL);

    // Beside each other, against each other, extended, renewed, watched, released.
    let reader = take("doc").shared().acquire().await.unwrap();
    let one_of_two = take("doc").permits(2).acquire().await.unwrap();
    assert!(take("doc").permits(2).acquire().await.unwrap_err().is_busy());
    assert!(take("doc").acquire().await.unwrap_err().is_busy());
    one_of_two.extend(TTL * 2).await.unwrap();
    let watched = clock::timeout(Duration::from_millis(20), one_of_two.lost()).await;
    assert!(watched.is_none(), "it is not lost");
    assert_eq!(reader.release().await, ReleaseOutcome::Released);
    assert_eq!(one_of_two.release().await, ReleaseOutcome::Released);
    let held = take("doc").shared().hold_at_least(Duration::from_millis(50)).acquire().await.unwrap();
    assert_eq!(held.release().await, ReleaseOutcome::Released);
    let writer = take("doc").wait(PATIENCE).acquire().await.unwrap();
    assert!(take("doc").shared().acquire().await.unwrap_err().is_busy());
    assert_eq!(writer.release().await, ReleaseOutcome::Released);

    // With a hash tag of the caller's, too.
    for key in ["order:1", "{order:1}:x"] {
        let fenced = take(key).fenced().acquire().await.unwrap();
        assert_ne!(fenced.fence(), 0);
        assert_eq!(fenced.release().await, ReleaseOutcome::Released);
    }

    let left: BTreeSet<_> = server.keys("*").await.into_iter().collect();
    assert_eq!(
        left,
        ["fence:lock:{order:1}:x", "fence:{lock:order:1}"].map(str::to_owned).into(),
        "only the counters stay"
    );
    monitor.settled().await
}

/// The commands among these that the manager ran, on the wire and in its scripts, by the names of an ACL.
fn used(commands: &[Executed]) -> BTreeSet<String> {
    let by_manager = |command: &&Executed| {
        let is_test = ["GET", "SET", "DEL"].iter().any(|name| command.is(name));
        // The test reads and writes keys too, but takes no lock.
        command.in_script() || !is_test || command.args.contains(&"NX".to_owned())
    };
    let name = |command: &Executed| match &command.args[..] {
        [first, second, ..] if ["ACL", "CLIENT", "SCRIPT"].iter().any(|name| command.is(name)) => {
            format!("{first}|{second}").to_lowercase()
        }
        [first, ..] => first.to_lowercase(),
        [] => String::new(),
    };
    commands.iter().filter(by_manager).map(name).collect()
}

#[test]
fn both_readmes_tell_of_one_account() {
    let [english, chinese] = READMES.map(Account::of);
    assert_eq!(english, chinese);
}

/// What each command is for.
#[test]
fn every_command_has_its_line_in_the_table() {
    for readme in READMES {
        let section = readme.split("\n## ").find(|section| section.contains("\nACL SETUSER ")).unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
        let listed: Vec<String> = rows
            // A bar inside a table is escaped; lists are separated by the comma of their language.
            .flat_map(|(names, _)| names.split(['`', ',', '、', ' ']).map(|name| name.replace("\\|", "|")))
            .filter(|name| !name.is_empty())
            .collect();
        let names: BTreeSet<&str> = listed.iter().map(String::as_str).collect();
        assert_eq!(names, Account::of(readme).with_extra().granted);
    }
}

#[tokio::test]
async fn everything_works_and_only_what_is_optional_is_denied() {
    let account = Account::of(READMES[0]);
    let server = account.server().await;
    let commands = use_all(&account, &server, false).await;
    let denied = denied(&server).await;
    assert!(denied.iter().all(|denied| account.offers(denied)), "not all of {denied:?} is optional");
    // Without it nothing is pushed: what is woken all the same is woken by asking again.
    assert!(denied.iter().any(|denied| denied.starts_with("client")), "{denied:?} lacks CLIENT TRACKING");
    let used = used(&commands);
    let needless: Vec<_> = account.granted.iter().filter(|name| !used.contains(**name)).collect();
    assert!(needless.is_empty(), "{needless:?} is granted for nothing: {used:?}");
}

/// The second line adds what these locks need, and nothing too much; without it they are refused, and say so.
#[tokio::test]
async fn shared_counted_and_fenced_locks_need_the_second_line() {
    let account = Account::of(READMES[0]);
    let server = account.server().await;
    let locks = account.manager(&server, "lock:").await;
    let take = || locks.lock("doc").ttl(TTL);
    for request in [take().shared(), take().permits(2), take().fenced()] {
        let error = request.acquire().await.unwrap_err();
        let LockError::Unavailable { cause, .. } = &error else { panic!("{error}") };
        assert_eq!(cause.kind(), StoreErrorKind::Refused, "{error}");
    }
    assert!(!server.exists("lock:doc").await, "nothing was half taken");

    let server = account.server().await;
    server.call::<()>(&account.extra).await;
    let commands = use_extra(&account, &server).await;
    let denied = denied(&server).await;
    assert!(denied.iter().all(|denied| account.offers(denied)), "not all of {denied:?} is optional");
    let used = used(&commands);
    let more = granted(&account.extra);
    let needless: Vec<_> = more.iter().filter(|name| !used.contains(**name)).collect();
    assert!(needless.is_empty(), "{needless:?} is granted for nothing: {used:?}");
    // What is locked without it goes on working with it.
    server.flush().await;
    use_all(&account, &server, false).await;
}

#[tokio::test]
async fn with_what_is_optional_nothing_is_denied() {
    let account = Account::of(READMES[0]);
    let server = account.server().await;
    for name in &account.optional {
        let more = server.try_call::<()>(&["ACL", "SETUSER", account.user, &format!("+{name}")]).await;
        // Redis 7.2 brought this one, and 7.0 knows all its subcommands by name.
        assert!(more.is_ok() || *name == "client|setinfo", "{name}: {more:?}");
    }
    server.call::<()>(&account.extra).await;
    use_extra(&account, &server).await;
    server.flush().await;
    use_all(&account, &server, true).await;
    assert_eq!(denied(&server).await, Vec::<String>::new());
}

/// The one command of the line that the README calls dispensable.
#[tokio::test]
async fn without_script_load_everything_works() {
    let account = Account::of(READMES[0]);
    let server = RedisServer::start().await;
    let without: Vec<_> = account.command.iter().copied().filter(|word| *word != "+script|load").collect();
    assert_eq!(without.len(), account.command.len() - 1);
    server.call::<()>(&without).await;
    use_all(&account, &server, false).await;
    let denied = denied(&server).await;
    let is_expected = |name: &String| name.starts_with("script") || account.offers(name);
    assert!(denied.iter().all(is_expected), "{denied:?}");
    assert!(denied.iter().any(|name| name.starts_with("script")), "{denied:?} lacks SCRIPT LOAD");
}

#[tokio::test]
async fn the_account_can_do_nothing_else() {
    let account = Account::of(READMES[0]);
    let server = account.server().await;
    server.call::<()>(&account.extra).await;
    server.set("other:1", "kept").await;
    server.set("lock:order:1", "someone else").await;

    let client = redis::Client::open(server.url_with(account.user, account.password)).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let read = "return redis.call('GET', 'other:1')";
    let foreign_keys: [&[&str]; 7] = [
        &["GET", "other:1"],
        &["SET", "other:1", "x"],
        &["DEL", "other:1"],
        &["DEL", "lock:order:1", "other:1"],
        &["PEXPIRE", "other:1", "1"],
        &["EVAL", read, "0"],
        &["EVAL", "return redis.call('DEL', KEYS[1])", "1", "other:1"],
    ];
    let foreign_commands: [&[&str]; 8] = [
        &["KEYS", "*"],
        &["FLUSHALL"],
        &["CONFIG", "GET", "*"],
        &["ACL", "LIST"],
        &["CLIENT", "LIST"],
        &["SCRIPT", "FLUSH"],
        &["EXPIRE", "lock:order:1", "1"],
        &["PUBLISH", "channel", "x"],
    ];
    for command in foreign_keys.into_iter().chain(foreign_commands) {
        let answer: redis::RedisResult<redis::Value> =
            redis::cmd(command[0]).arg(&command[1..]).query_async(&mut connection).await;
        let error = answer.expect_err(&command.join(" "));
        // What a script is denied, each version of Redis says in words of its own.
        assert!(command[0] == "EVAL" || error.code() == Some("NOPERM"), "{command:?}: {error}");
    }
    assert_eq!(server.get("other:1").await.as_deref(), Some("kept"));
    assert_eq!(server.get("lock:order:1").await.as_deref(), Some("someone else"));
    assert!(denied(&server).await.contains(&"other:1".to_owned()), "what is denied is in the log");

    // To a manager with another prefix that is a store that refuses, not a lock that is busy.
    let locks = account.manager(&server, "other:").await;
    let error = locks.lock("1").ttl(TTL).acquire().await.unwrap_err();
    let LockError::Unavailable { cause, .. } = &error else { panic!("{error}") };
    assert_eq!(cause.kind(), StoreErrorKind::Refused);
    assert!(error.to_string().contains("NOPERM"), "{error}");
    assert!(!error.to_string().contains(account.password), "{error}");
}
