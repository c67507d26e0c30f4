//! The harness does what it says: each fault is seen by a client, and each observer sees what happened.

use std::future::pending;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::task::Poll;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisResult, Value};
use tests::history::{History, Mode, Violation};
use tests::monitor::Monitor;
use tests::process::Process;
use tests::proxy::{Fault, Flow, Proxy};
use tests::server::RedisServer;
use tests::{clock, events, eventually, free_port, poll, temp_dir};
use tracing::instrument::WithSubscriber as _;

/// Long enough for anything that is not held up on purpose.
const SOON: Duration = Duration::from_secs(5);
/// How long a test waits for what does not come, or is delayed.
const BRIEF: Duration = Duration::from_millis(200);

async fn connect_within(url: &str, response: Duration) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(response))
        .set_response_timeout(Some(response));
    Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await
}

async fn patient(url: &str) -> MultiplexedConnection {
    connect_within(url, SOON).await.expect("a connection to what was just started")
}

async fn call(connection: &mut MultiplexedConnection, args: &[&str]) -> RedisResult<Value> {
    redis::cmd(args[0]).arg(&args[1..]).query_async(connection).await
}

/// A call that runs by itself, so that the test can look at the proxy meanwhile.
fn calling(connection: &MultiplexedConnection, args: &'static [&'static str]) -> Call {
    let mut connection = connection.clone();
    tokio::spawn(async move { call(&mut connection, args).await })
}

type Call = tokio::task::JoinHandle<RedisResult<Value>>;

async fn answer(call: Call) -> RedisResult<Value> {
    clock::timeout(SOON, call).await.expect("the call ends soon").expect("the call does not panic")
}

async fn assert_unanswered(connection: &mut MultiplexedConnection, args: &[&str]) {
    let answer = clock::timeout(BRIEF, call(connection, args)).await;
    assert_eq!(answer, None, "{args:?} was answered");
}

fn ok() -> Value {
    Value::Okay
}

async fn proxied() -> (RedisServer, Proxy) {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    (server, proxy)
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

mod server {
    use super::*;

    #[tokio::test]
    async fn keys_are_seen_from_outside() {
        let server = RedisServer::start().await;
        server.set("a", "1").await;
        server.set_px("b", "2", 60_000).await;
        assert_eq!(server.get("a").await.as_deref(), Some("1"));
        assert_eq!(server.get("none").await, None);
        assert_eq!(server.pttl("a").await, -1);
        assert_eq!(server.pttl("none").await, -2);
        assert!((1..=60_000).contains(&server.pttl("b").await));
        assert_eq!(server.keys("*").await, ["a", "b"]);
        assert!(server.del("a").await && !server.del("a").await);
        assert!(server.exists("b").await);
        server.flush().await;
        assert!(!server.exists("b").await);
        let error = server.try_call::<Value>(&["NONSENSE"]).await.expect_err("there is no such command");
        assert!(error.to_string().contains("unknown command"), "{error}");
    }

    #[tokio::test]
    async fn a_pause_holds_up_replies_and_a_resume_gives_them() {
        let server = RedisServer::start().await;
        let connection = server.connection().await;
        server.pause();
        let waiting = calling(&connection, &["SET", "k", "v"]);
        clock::sleep(BRIEF).await;
        assert!(!waiting.is_finished());
        server.resume();
        assert_eq!(answer(waiting).await, Ok(ok()));
    }

    #[tokio::test]
    async fn a_restart_keeps_the_port_and_forgets_the_data() {
        let server = RedisServer::start_with(&["--maxmemory", "50mb"]).await;
        let (port, pid) = (server.port(), server.pid());
        server.set("k", "v").await;
        // Not even what someone made it write down.
        server.call::<()>(&["SAVE"]).await;
        server.kill().await;
        assert_eq!(server.pid(), None);
        assert!(!is_alive(pid.expect("it ran")));
        connect_within(&server.url(), BRIEF)
            .await
            .map(drop)
            .expect_err("a killed server takes no connection");
        server.restart().await;
        assert_eq!(server.port(), port);
        assert_ne!(server.pid(), pid);
        assert_eq!(server.keys("*").await, Vec::<String>::new());
        let maxmemory: Vec<String> = server.call(&["CONFIG", "GET", "maxmemory"]).await;
        assert_eq!(maxmemory, ["maxmemory", "52428800"]);
    }

    #[tokio::test]
    async fn with_an_append_only_file_a_restart_keeps_the_data() {
        let server = RedisServer::start_aof().await;
        server.set("k", "v").await;
        server.restart().await;
        assert_eq!(server.get("k").await.as_deref(), Some("v"));
    }

    #[tokio::test]
    async fn a_password_is_known_to_the_harness() {
        let secret = "p@ss:w/rd";
        let server = RedisServer::start_with(&["--requirepass", secret]).await;
        server.try_call::<Value>(&["GET", "k"]).await.expect_err("nobody has logged in");
        connect_within(&server.url_with("default", secret), SOON).await.expect("the right password");
        connect_within(&server.url_with("default", "wrong"), SOON).await.map(drop).expect_err("a wrong one");
        server.log_in_as("default", secret);
        server.set("k", "v").await;
        let monitor = Monitor::attach(&server);
        server.connection().await;
        assert!(monitor.settled().await.iter().all(|command| !command.to_string().contains(secret)));
        server.restart().await;
        assert!(!server.exists("k").await);
    }

    #[tokio::test]
    async fn connections_are_counted_and_killed() {
        let server = RedisServer::start().await;
        assert_eq!(server.connections().await, 0);
        let mut connection = server.connection().await;
        assert_eq!(server.connections().await, 1);
        assert_eq!(server.kill_connections().await, 1);
        call(&mut connection, &["PING"]).await.expect_err("its connection is closed");
    }

    #[tokio::test]
    async fn nothing_is_left_behind_even_on_panic() {
        let task = tokio::spawn(async {
            let server = RedisServer::start().await;
            let dir: Vec<String> = server.call(&["CONFIG", "GET", "dir"]).await;
            let left = (server.pid().expect("it runs"), dir[1].clone());
            server.pause();
            std::panic::panic_any(left);
        });
        let panic = task.await.expect_err("it panicked").into_panic();
        let (pid, dir) = *panic.downcast::<(u32, String)>().expect("the panic of the test");
        assert!(!is_alive(pid));
        assert!(!Path::new(&dir).exists());
    }

    #[tokio::test]
    async fn what_the_server_refuses_is_told() {
        let start = tokio::spawn(RedisServer::start_with(&["--no-such-option", "1"]));
        let panic = start.await.map(drop).expect_err("redis-server refuses the option").into_panic();
        let message = panic.downcast_ref::<String>().expect("a message");
        assert!(message.contains("Bad directive"), "{message}");
    }

    /// The child's part of the next test: its environment has no `redis-server`. Nothing to do in the parent's run.
    #[tokio::test]
    async fn child_without_server() {
        if env::var_os("HARNESS_CHILD").is_some() {
            RedisServer::start().await;
        }
    }

    #[tokio::test]
    async fn a_missing_server_is_told_with_its_cure() {
        let empty = temp_dir();
        let path = empty.path().to_str().expect("a plain path");
        let binary = env::current_exe().expect("the path of this test");
        let run = |variables: &[(&str, &str)]| {
            let mut command = Command::new(&binary);
            command.args(["server::child_without_server", "--exact", "--nocapture"]);
            command.env("HARNESS_CHILD", "1").env_remove("REDIS_SERVER_BIN").envs(variables.iter().copied());
            let output = command.output().expect("this test can be started again");
            assert!(!output.status.success());
            String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
        };
        let missing = run(&[("PATH", path)]);
        let cure = "redis-server is not installed: run tests/run.sh, or apt-get install redis-server";
        assert!(missing.contains(cure), "{missing}");
        let misnamed = run(&[("REDIS_SERVER_BIN", "/no/such/server")]);
        assert!(misnamed.contains("REDIS_SERVER_BIN names /no/such/server"), "{misnamed}");
    }
}

mod proxy {
    use super::*;

    #[tokio::test]
    async fn commands_are_passed_recorded_and_counted() {
        let (server, proxy) = proxied().await;
        let mut connection = patient(&proxy.url()).await;
        proxy.take_commands();
        let (sent, received) = (proxy.bytes_from_clients(), proxy.bytes_from_server());
        assert_eq!(call(&mut connection, &["set", "k", "a\r\nb"]).await, Ok(ok()));
        assert_eq!(server.get("k").await.as_deref(), Some("a\r\nb"));
        let commands = proxy.commands();
        assert_eq!(commands.len(), 1);
        assert_eq!(commands[0].args, [b"set".to_vec(), b"k".to_vec(), b"a\r\nb".to_vec()]);
        assert!(commands[0].is("SET") && commands[0].is("*") && !commands[0].is("GET"));
        assert_eq!(proxy.take_commands(), commands);
        assert!(proxy.commands().is_empty());
        assert_eq!(
            proxy.bytes_from_clients() - sent,
            "*3\r\n$3\r\nset\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n".len() as u64
        );
        assert_eq!(proxy.bytes_from_server() - received, "+OK\r\n".len() as u64);
        assert_eq!((proxy.accepted(), proxy.open()), (1, 1));
        drop(connection);
        eventually("the proxy closes what its client closed", SOON, async || proxy.open() == 0).await;
        eventually("the server hears of it", SOON, async || server.connections().await == 0).await;
    }

    #[tokio::test]
    async fn large_and_pipelined_commands_stay_whole() {
        let (server, proxy) = proxied().await;
        let mut connection = patient(&proxy.url()).await;
        proxy.take_commands();
        let large = "x".repeat(3_000_000);
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg("large").arg(&large).cmd("STRLEN").arg("large").cmd("GET").arg("large");
        let (_, length, value): (String, usize, String) =
            pipe.query_async(&mut connection).await.expect("a pipeline passes");
        assert_eq!((length, &value), (large.len(), &large));
        assert_eq!(proxy.commands().len(), 3);
        assert!(server.exists("large").await);
    }

    #[tokio::test]
    async fn replies_are_delayed() {
        let (server, proxy) = proxied().await;
        let connection = patient(&proxy.url()).await;
        proxy.replies(Flow::Delay(BRIEF));
        let start = Instant::now();
        let delayed = calling(&connection, &["SET", "k", "v"]);
        eventually("the request passes", SOON, async || server.exists("k").await).await;
        let early = delayed.is_finished();
        assert!(!early || start.elapsed() >= BRIEF);
        assert_eq!(answer(delayed).await, Ok(ok()));
        assert!(start.elapsed() >= BRIEF);
    }

    #[tokio::test]
    async fn a_delayed_request_arrives_after_its_client_has_gone() {
        let (server, proxy) = proxied().await;
        let mut connection = patient(&proxy.url()).await;
        proxy.requests(Flow::Delay(BRIEF * 3));
        let start = Instant::now();
        assert_unanswered(&mut connection, &["SET", "k", "late"]).await;
        drop(connection);
        proxy.requests(Flow::Pass);
        let arrived = server.exists("k").await;
        assert!(!arrived || start.elapsed() >= BRIEF * 3);
        eventually("the request arrives", SOON, async || server.get("k").await.as_deref() == Some("late"))
            .await;
        eventually("then the proxy closes", SOON, async || proxy.open() == 0).await;
    }

    #[tokio::test]
    async fn a_held_request_arrives_after_its_client_was_cut_off() {
        let (server, proxy) = proxied().await;
        let mut connection = patient(&proxy.url()).await;
        proxy.next("SET", Fault::HoldRequest);
        let held = calling(&connection, &["SET", "k", "late"]);
        proxy.wait_for("SET").await;
        proxy.cut_clients();
        answer(held).await.expect_err("it was cut");
        call(&mut connection, &["PING"]).await.expect_err("the connection is gone");
        assert!(!server.exists("k").await);
        proxy.release();
        eventually("the request arrives", SOON, async || server.exists("k").await).await;
    }

    #[tokio::test]
    async fn what_is_held_is_delivered_in_order() {
        let (server, proxy) = proxied().await;
        let connection = patient(&proxy.url()).await;
        proxy.requests(Flow::Hold);
        let first = calling(&connection, &["APPEND", "k", "1"]);
        proxy.wait_for("APPEND").await;
        // Behind the first one, although the flow passes again at once for what comes after.
        let second = calling(&connection, &["APPEND", "k", "2"]);
        proxy.wait_for_where(|command| command.words() == ["APPEND", "k", "2"]).await;
        assert!(!server.exists("k").await);
        proxy.requests(Flow::Pass);
        assert_eq!(answer(first).await, Ok(Value::Int(1)));
        assert_eq!(answer(second).await, Ok(Value::Int(2)));
        assert_eq!(server.get("k").await.as_deref(), Some("12"));

        proxy.replies(Flow::Hold);
        let held = calling(&connection, &["DEL", "k"]);
        eventually("the request passes", SOON, async || !server.exists("k").await).await;
        assert!(!held.is_finished());
        proxy.replies(Flow::Pass);
        assert_eq!(answer(held).await, Ok(Value::Int(1)));
    }

    #[tokio::test]
    async fn replies_or_requests_are_swallowed() {
        let (server, proxy) = proxied().await;
        let mut connection = patient(&proxy.url()).await;
        proxy.replies(Flow::Swallow);
        assert_unanswered(&mut connection, &["SET", "reply", "v"]).await;
        assert!(server.exists("reply").await);
        proxy.pass();
        let mut connection = patient(&proxy.url()).await;
        proxy.requests(Flow::Swallow);
        assert_unanswered(&mut connection, &["SET", "request", "v"]).await;
        assert!(!server.exists("request").await);
        assert!(proxy.commands().iter().any(|command| command.words() == ["SET", "request", "v"]));
    }

    #[tokio::test]
    async fn faults_meet_only_the_command_they_are_for() {
        let (server, proxy) = proxied().await;
        let connection = patient(&proxy.url()).await;
        let mut other = connection.clone();
        proxy.next("SET", Fault::HoldReply);
        let held = calling(&connection, &["SET", "k", "v"]);
        proxy.wait_for("SET").await;
        // Replies stay in order, so this one waits behind the other; its request does not.
        let behind = calling(&connection, &["SET", "k2", "v"]);
        eventually("both requests pass", SOON, async || server.keys("k*").await.len() == 2).await;
        assert!(!held.is_finished() && !behind.is_finished());
        proxy.release();
        assert_eq!(answer(held).await, Ok(ok()));
        assert_eq!(answer(behind).await, Ok(ok()));

        proxy.next("SET", Fault::SwallowReply);
        let mut mute = patient(&proxy.url()).await;
        assert_unanswered(&mut mute, &["SET", "k3", "v"]).await;
        assert!(server.exists("k3").await);

        proxy.next("SET", Fault::DelayReply(BRIEF));
        let start = Instant::now();
        assert_eq!(call(&mut other, &["SET", "k", "v"]).await, Ok(ok()));
        assert!(start.elapsed() >= BRIEF);
        proxy.next_where(|command| command.words().contains(&"later".into()), Fault::DelayRequest(BRIEF));
        assert_eq!(call(&mut other, &["SET", "k", "now"]).await, Ok(ok()));
        let start = Instant::now();
        assert_eq!(call(&mut other, &["SET", "k", "later"]).await, Ok(ok()));
        assert!(start.elapsed() >= BRIEF);

        proxy.next("SET", Fault::SwallowRequest);
        let mut lonely = patient(&proxy.url()).await;
        assert_unanswered(&mut lonely, &["SET", "k4", "v"]).await;
        assert!(!server.exists("k4").await);
    }

    #[tokio::test]
    async fn replies_are_forged_in_their_place() {
        let (server, proxy) = proxied().await;
        let mut connection = patient(&proxy.url()).await;
        proxy.every("GET", Fault::error("LOADING Redis is loading the dataset in memory"));
        let mut pipe = redis::pipe();
        pipe.ignore_errors().cmd("SET").arg("k").arg("v").cmd("GET").arg("k").cmd("STRLEN").arg("k");
        let (set, get, length): (RedisResult<Value>, RedisResult<Value>, RedisResult<Value>) =
            pipe.query_async(&mut connection).await.expect("each has a result of its own");
        assert_eq!((set, length), (Ok(ok()), Ok(Value::Int(1))));
        assert_eq!(get.expect_err("the forged error").code(), Some("LOADING"));
        let error = call(&mut connection, &["GET", "k"]).await.expect_err("it is not forged once");
        assert_eq!(error.code(), Some("LOADING"));
        proxy.clear_faults();
        assert_eq!(call(&mut connection, &["GET", "k"]).await, Ok(Value::BulkString(b"v".to_vec())));
        assert!(server.exists("k").await);
    }

    #[tokio::test]
    async fn pushes_are_told_from_replies() {
        let (server, proxy) = proxied().await;
        let (sender, mut pushes) = tokio::sync::mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new().set_push_sender(sender);
        let mut connection = Client::open(format!("{}?protocol=resp3", proxy.url()))
            .expect("a valid URL")
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .expect("a connection");
        call(&mut connection, &["CLIENT", "TRACKING", "ON"]).await.expect("tracking is on");
        call(&mut connection, &["GET", "k"]).await.expect("the key is tracked");
        proxy.next("PING", Fault::HoldReply);
        let ping = calling(&connection, &["PING"]);
        proxy.wait_for("PING").await;
        server.set("k", "v").await;
        proxy.release();
        assert_eq!(answer(ping).await, Ok(Value::SimpleString("PONG".into())));
        let push = clock::timeout(SOON, pushes.recv()).await.flatten().expect("a push");
        assert_eq!(push.kind, redis::PushKind::Invalidate);
    }

    #[tokio::test]
    async fn connections_are_cut() {
        let (server, proxy) = proxied().await;
        let mut connection = patient(&proxy.url()).await;
        proxy.requests(Flow::Hold);
        let lost = calling(&connection, &["SET", "k", "v"]);
        proxy.wait_for("SET").await;
        proxy.cut();
        assert_eq!(proxy.open(), 0);
        answer(lost).await.expect_err("it was cut");
        call(&mut connection, &["PING"]).await.expect_err("the connection is gone");
        proxy.pass();
        eventually("the server hears of it", SOON, async || server.connections().await == 0).await;
        assert!(!server.exists("k").await);
        let mut connection = patient(&proxy.url()).await;
        call(&mut connection, &["PING"]).await.expect("new connections work");
    }

    #[tokio::test]
    async fn a_cut_after_the_request_is_executed_leaves_the_key() {
        let (server, proxy) = proxied().await;
        let mut connection = patient(&proxy.url()).await;
        proxy.cut_after_next_request();
        let error = call(&mut connection, &["SET", "after", "v"]).await.expect_err("it was cut");
        assert!(!error.is_timeout(), "{error}");
        assert!(server.exists("after").await);

        let mut connection = patient(&proxy.url()).await;
        proxy.next("SET", Fault::CutRequest);
        let error = call(&mut connection, &["SET", "before", "v"]).await.expect_err("it was cut");
        assert!(!error.is_timeout(), "{error}");
        assert!(!server.exists("before").await);
    }

    #[tokio::test]
    async fn black_holes_swallow_old_connections_or_all() {
        let (server, proxy) = proxied().await;
        let mut old = patient(&proxy.url()).await;
        proxy.black_hole_existing();
        assert_unanswered(&mut old, &["SET", "old", "v"]).await;
        let mut new = patient(&proxy.url()).await;
        assert_eq!(call(&mut new, &["SET", "new", "v"]).await, Ok(ok()));
        assert_eq!(server.keys("*").await, ["new"]);
        drop(old);
        proxy.black_hole();
        assert_unanswered(&mut new, &["SET", "new2", "v"]).await;
        assert!(connect_within(&proxy.url(), BRIEF).await.map(drop).expect_err("no handshake").is_timeout());
        assert_eq!(server.keys("*").await, ["new"]);
        // The server has not heard that the first client has gone.
        assert!(server.connections().await >= 2);
        proxy.pass();
        assert_unanswered(&mut new, &["PING"]).await;
        let mut last = patient(&proxy.url()).await;
        call(&mut last, &["PING"]).await.expect("new connections work again");
    }

    #[tokio::test]
    async fn new_connections_are_refused() {
        let (_server, proxy) = proxied().await;
        let mut old = patient(&proxy.url()).await;
        proxy.refuse_new_connections();
        let error = connect_within(&proxy.url(), SOON).await.map(drop).expect_err("refused");
        assert!(error.is_connection_refusal(), "{error:?}");
        call(&mut old, &["PING"]).await.expect("the old connection works");
        proxy.accept_new_connections();
        patient(&proxy.url()).await;
    }

    #[tokio::test]
    async fn a_dead_server_is_not_hidden() {
        let (server, proxy) = proxied().await;
        let mut connection = patient(&proxy.url()).await;
        server.kill().await;
        call(&mut connection, &["PING"]).await.expect_err("the server is dead");
        connect_within(&proxy.url(), SOON).await.map(drop).expect_err("so are new connections");
        server.restart().await;
        patient(&proxy.url()).await;
        let other = RedisServer::start().await;
        proxy.set_target(other.port());
        call(&mut patient(&proxy.url()).await, &["SET", "k", "v"]).await.expect("the other server answers");
        assert!(other.exists("k").await && !server.exists("k").await);
    }

    #[test]
    fn it_outlives_the_runtime_that_made_it() {
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (server, proxy) = runtime().block_on(proxied());
        runtime().block_on(async {
            let mut connection = patient(&proxy.url()).await;
            call(&mut connection, &["SET", "k", "v"]).await.expect("the proxy works");
            assert!(server.exists("k").await);
        });
    }
}

mod observers {
    use super::*;

    #[tokio::test]
    async fn the_monitor_sees_exactly_what_was_sent() {
        let server = RedisServer::start().await;
        let mut connection = server.connection().await;
        let monitor = Monitor::attach(&server);
        call(&mut connection, &["SELECT", "3"]).await.expect("there is a database 3");
        call(&mut connection, &["SET", "k \"\\\n\u{e9}", "v"]).await.expect("it is set");
        call(&mut connection, &["EVAL", "return redis.call('GET', KEYS[1])", "1", "k"])
            .await
            .expect("it runs");
        let seen = monitor.settled().await;
        let args: Vec<_> = seen.iter().map(|command| command.args.join("|")).collect();
        let eval = "EVAL|return redis.call('GET', KEYS[1])|1|k";
        assert_eq!(args, ["SELECT|3", "SET|k \"\\\n\u{e9}|v", eval, "GET|k"]);
        assert!(seen[1..].iter().all(|command| command.db == 3));
        assert_eq!(seen.iter().filter(|command| command.in_script()).count(), 1);
        assert!(seen[0].client.starts_with("127.0.0.1:") && seen[0].client == seen[2].client);
        assert_eq!(monitor.wire().await.len(), 3);
        assert_eq!(monitor.take().len(), 4);
        assert!(monitor.settled().await.is_empty());
    }

    #[tokio::test]
    async fn the_monitor_settles_behind_requests_without_replies() {
        let server = RedisServer::start().await;
        let monitor = Monitor::attach(&server);
        let connect = |_| TcpStream::connect(("127.0.0.1", server.port())).expect("the server listens");
        let mut connections: Vec<_> = (0..20).map(connect).collect();
        for connection in &mut connections {
            connection.write_all(b"INCR count\r\n").expect("the server reads");
        }
        let counted = monitor.settled().await.iter().filter(|command| command.is("incr")).count();
        assert_eq!(counted, 20);
    }

    #[tokio::test]
    async fn events_and_spans_are_captured() {
        let (recorder, _guard) = events::Recorder::install();
        let span = tracing::info_span!("locked", key = "lock:order:1", outcome = tracing::field::Empty);
        span.in_scope(|| tracing::warn!(target: "lock::release", held_ms = 7, token = %"t", "not held"));
        span.record("outcome", "lost");
        tracing::debug!(key = "lock:order:2", "other");
        let event = recorder.wait_for(|event| event.field("held_ms") == "7").await;
        assert_eq!(event.message, "not held");
        assert_eq!((event.level, event.target.as_str()), (tracing::Level::WARN, "lock::release"));
        assert_eq!(event.field("token"), "t");
        let around = event.span().expect("it was in a span");
        assert_eq!((around.name.as_str(), around.fields["key"].as_str()), ("locked", "lock:order:1"));
        let spans = recorder.spans();
        assert_eq!(
            (spans[0].fields["outcome"].as_str(), spans[0].entered, spans[0].closed),
            ("lost", 1, false)
        );
        drop(span);
        assert!(recorder.spans()[0].closed);
        assert_eq!(recorder.events().len(), 2);
        assert_eq!(recorder.for_key("order:1").events().len(), 1);
        assert_eq!(recorder.for_key("lock:order:2").events().len(), 1);
        assert!(recorder.for_key("rder:1").events().is_empty());
        let never = tokio::spawn(async move {
            recorder.wait_for_within(BRIEF, |event| event.message == "never").await;
        });
        let panic = never.await.expect_err("it never comes").into_panic();
        let message = panic.downcast_ref::<String>().expect("a message");
        assert!(message.contains("harness_works.rs") && message.contains("held_ms=7"), "{message}");
    }

    #[tokio::test]
    async fn events_of_other_threads_reach_the_global_recorder() {
        let recorder = events::global().for_key("background");
        let waiting = recorder.wait_for(|event| event.message == "released");
        let thread = thread::Builder::new().name("worker".into()).spawn(|| {
            thread::sleep(Duration::from_millis(20));
            tracing::info!(key = "lock:background", "released");
            tracing::info!(key = "lock:elsewhere", "released");
        });
        assert_eq!(waiting.await.thread, "worker");
        thread.expect("a thread").join().expect("it ends");
        assert_eq!(recorder.events().len(), 1);

        let (detached, dispatch) = events::Recorder::detached();
        async { tracing::info!(key = "lock:background", "detached") }.with_subscriber(dispatch).await;
        assert_eq!((detached.events().len(), recorder.events().len()), (1, 1));
    }
}

mod histories {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_clean_history_is_clean() {
        let history = History::new();
        let zero = Instant::now();
        let record = |key: &str, from: u32, to: u32, deadline: u32, fence| {
            let token = format!("{key}{from}");
            history.record(key, zero + MS * from, zero + MS * to, zero + MS * deadline, &token, fence);
        };
        record("a", 20, 30, 40, Some(2));
        record("a", 0, 10, 15, Some(1));
        // Another key.
        record("b", 0, 30, 40, Some(1));
        // Starts at the moment when the other ends, and outstays its lease.
        record("a", 30, 90, 50, None);
        record("a", 50, 60, 70, Some(3));
        // Starts behind the end of its own lease, for instance because its process was stopped in between.
        record("a", 55, 95, 40, Some(1));
        assert_eq!(history.len(), 6);
        assert_eq!(history.violations(), []);
        history.assert_clean();
    }

    #[test]
    fn planted_violations_are_found() {
        let history = History::new();
        let zero = Instant::now();
        let record = |from: u32, to: u32, token: &str, fence| {
            history.record("a", zero + MS * from, zero + MS * to, zero + MS * 100, token, fence);
        };
        record(0, 50, "long", Some(1));
        record(10, 20, "inside", Some(2));
        // Overlaps the first, not its neighbour.
        record(30, 40, "also inside", Some(2));
        record(60, 70, "fine", None);
        record(80, 90, "old fence", Some(1));
        let found: Vec<_> = history.violations().iter().map(names).collect();
        assert_eq!(
            found,
            [
                ("overlap", "long".into(), "inside".into()),
                ("overlap", "long".into(), "also inside".into()),
                ("fence", "inside".into(), "also inside".into()),
                ("fence", "inside".into(), "old fence".into()),
            ]
        );
        let shown = history.violations()[0].to_string();
        assert!(shown.contains("inside was there from 10000 µs to 20000 µs"), "{shown}");
        let panic = std::panic::catch_unwind(|| history_of_one_overlap().assert_clean());
        assert!(panic.is_err());
        assert!(std::panic::catch_unwind(|| History::new().assert_clean()).is_err());
    }

    fn names(violation: &Violation) -> (&'static str, String, String) {
        let (kind, first, second) = match violation {
            Violation::Overlap { first, second } => ("overlap", first.token.clone(), second),
            Violation::Fence { first, second } => ("fence", first.token.clone(), second),
            Violation::Crowd { others, second } => {
                let others: Vec<_> = others.iter().map(|other| other.token.as_str()).collect();
                ("crowd", others.join(" "), second)
            }
        };
        (kind, first, second.token.clone())
    }

    #[test]
    fn who_may_share_does() {
        let history = History::new();
        let zero = Instant::now();
        let record = |mode, from: u32, to: u32, deadline: u32| {
            let token = format!("{mode}@{from}");
            history.record_as(mode, "a", zero + MS * from, zero + MS * to, zero + MS * deadline, &token);
        };
        record(Mode::Shared, 0, 20, 90);
        record(Mode::Permits(2), 5, 15, 90);
        // By its own number, and a reader by none.
        record(Mode::Permits(3), 6, 12, 90);
        record(Mode::Shared, 7, 30, 90);
        // Those that left do not count, and the body that outstays its lease does not either.
        record(Mode::Permits(2), 20, 28, 24);
        record(Mode::Permits(2), 25, 30, 90);
        record(Mode::Exclusive, 30, 40, 90);
        record(Mode::Permits(1), 40, 50, 90);
        record(Mode::Exclusive, 50, 70, 60);
        record(Mode::Shared, 60, 80, 90);
        record(Mode::Exclusive, 80, 90, 90);
        // Behind the end of its own lease.
        record(Mode::Exclusive, 65, 75, 60);
        assert_eq!(history.len(), 12);
        history.assert_clean();
    }

    #[test]
    fn planted_violations_of_each_mode_are_found() {
        let zero = Instant::now();
        let found = |stays: &[(Mode, u32, u32)]| {
            let history = History::new();
            for (number, (mode, from, to)) in stays.iter().enumerate() {
                let token = number.to_string();
                let (start, end) = (zero + MS * *from, zero + MS * *to);
                history.record_as(*mode, "a", start, end, zero + MS * 100, &token);
            }
            let found: Vec<_> = history.violations().iter().map(names).collect();
            let shown: Vec<_> = history.violations().iter().map(ToString::to_string).collect();
            (found, shown.join("\n"))
        };
        let overlap = |first: &str, second: &str| ("overlap", first.to_owned(), second.to_owned());
        let crowd = |others: &str, second: &str| ("crowd", others.to_owned(), second.to_owned());
        let (shared, permits) = (Mode::Shared, Mode::Permits);
        let exclusive = Mode::Exclusive;
        // An exclusive one and each kind, in both orders; a reader that came later hides nobody.
        assert_eq!(found(&[(exclusive, 0, 9), (exclusive, 5, 6)]).0, [overlap("0", "1")]);
        assert_eq!(found(&[(exclusive, 0, 9), (shared, 5, 20)]).0, [overlap("0", "1")]);
        assert_eq!(found(&[(exclusive, 0, 9), (permits(5), 5, 6)]).0, [overlap("0", "1")]);
        assert_eq!(found(&[(shared, 0, 9), (exclusive, 5, 6)]).0, [overlap("0", "1")]);
        assert_eq!(found(&[(permits(5), 0, 9), (exclusive, 5, 6)]).0, [overlap("0", "1")]);
        let two = [(exclusive, 0, 9), (shared, 5, 20), (shared, 8, 9), (exclusive, 10, 11)];
        assert_eq!(found(&two).0, [overlap("0", "1"), overlap("0", "2"), overlap("1", "3")]);
        // One too many, of each kind, and by the smaller of two numbers.
        assert_eq!(found(&[(permits(1), 0, 9), (permits(1), 5, 6)]).0, [crowd("0", "1")]);
        assert_eq!(found(&[(shared, 0, 9), (shared, 1, 9), (permits(2), 5, 6)]).0, [crowd("0 1", "2")]);
        let three = [(shared, 0, 9), (permits(5), 1, 9), (permits(5), 2, 4), (permits(2), 5, 6)];
        let (names, shown) = found(&three);
        assert_eq!(names, [crowd("0 1", "3")]);
        assert!(shown.starts_with("a: too many; 0 was there from 0 µs to 9000 µs"), "{shown}");
        assert!(
            shown.contains("3 was there from 5000 µs to 6000 µs") && shown.contains("permits:2"),
            "{shown}"
        );
    }

    /// Between the grant and the first step of the body others may come: only what was wrong all along is.
    #[test]
    fn one_that_counts_was_admitted_between_its_attempt_and_its_start() {
        let far = Instant::now() + SOON;
        for (early, late, violations) in [(1, 1, 0), (2, 0, 1), (2, 1, 1), (0, 3, 0)] {
            let history = History::new();
            let enter = |mode, asked| {
                let section = history.enter_as(mode, "a", asked, far, "t");
                thread::sleep(MS);
                section
            };
            let mut inside: Vec<_> = (0..early).map(|_| enter(Mode::Shared, Instant::now())).collect();
            let asked = Instant::now();
            thread::sleep(MS);
            inside.extend((0..late).map(|_| enter(Mode::Shared, Instant::now())));
            drop(enter(Mode::Permits(2), asked));
            assert_eq!(history.violations().len(), violations, "{early} and {late}");
        }
        let history = History::new();
        let reader = history.enter_as(Mode::Shared, "a", far, far, "reader");
        let asked = Instant::now();
        thread::sleep(MS);
        drop(reader);
        thread::sleep(MS);
        let _reader = history.enter_as(Mode::Shared, "a", far, far, "next reader");
        thread::sleep(MS);
        drop(history.enter_as(Mode::Permits(1), "a", asked, far, "in between"));
        history.assert_clean();
    }

    #[test]
    fn modes_and_several_keys_are_in_the_file() {
        let dir = temp_dir();
        let path = dir.path().join("history");
        // As written before there were modes.
        fs::write(&path, "enter\t1-0\tb\t5\t9\told\t7\t\nleave\t1-0\t6\t\n").expect("it can be written");
        let history = History::to_file(&path);
        let now = Instant::now();
        for key in ["a", "b"] {
            drop(history.enter_as(Mode::Exclusive, key, now, now + SOON, "both"));
        }
        let reader = history.enter_as(Mode::Shared, "b", now, now + SOON, "reader");
        drop(history.enter_as(Mode::Permits(1), "b", Instant::now(), now + SOON, "one"));
        drop(history.enter("b", now + SOON, "writer", None));
        drop(reader);
        let all = History::load(&path);
        let intervals = all.intervals();
        let seen: Vec<_> = intervals.iter().map(|stay| (stay.key.as_str(), stay.mode, stay.fence)).collect();
        assert_eq!(
            seen,
            [
                ("b", Mode::Exclusive, Some(7)),
                ("a", Mode::Exclusive, None),
                ("b", Mode::Exclusive, None),
                ("b", Mode::Shared, None),
                ("b", Mode::Permits(1), None),
                ("b", Mode::Exclusive, None),
            ]
        );
        assert_eq!((intervals[0].start, intervals[0].asked, intervals[0].end), (5, 5, 6));
        assert_eq!(intervals[4..5], history.intervals()[3..4], "nothing is lost on the way");
        let found: Vec<_> = all.violations().iter().map(names).collect();
        assert_eq!(
            found,
            [("crowd", "reader".into(), "one".into()), ("overlap", "reader".into(), "writer".into()),]
        );
    }

    fn history_of_one_overlap() -> History {
        let history = History::new();
        let far = Instant::now() + SOON;
        let _first = history.enter("a", far, "1", None);
        let _second = history.enter("a", far, "2", None);
        history
    }

    #[test]
    fn a_later_deadline_counts() {
        let history = History::new();
        let now = Instant::now();
        let section = history.enter("a", now + MS, "renewed", None);
        section.set_deadline(now + SOON);
        thread::sleep(MS * 2);
        drop(history.enter("a", now + SOON, "other", None));
        drop(section);
        assert_eq!(history.violations().len(), 1);
    }

    #[test]
    fn a_long_history_is_checked_quickly() {
        let history = History::new();
        let zero = Instant::now();
        for number in 0..100_000_u32 {
            let at = zero + Duration::from_micros(10) * number;
            let end = at + Duration::from_micros(9);
            history.record("a", at, end, end + MS, "t", Some(u64::from(number)));
        }
        let start = Instant::now();
        history.assert_clean();
        let history = History::new();
        for number in 0..100_000_u32 {
            let at = zero + Duration::from_micros(10) * number;
            let end = at + Duration::from_micros(25);
            let mode = if number % 2 == 0 { Mode::Shared } else { Mode::Permits(3) };
            history.record_as(mode, "a", at, end, end + MS, "t");
        }
        history.assert_clean();
        // Milliseconds where nothing else runs; what compares each with each takes minutes.
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    }

    /// The child's part of the next test: it enters once and leaves, enters again and is killed inside. Nothing to do
    /// in the parent's run.
    #[test]
    fn child_in_a_section() {
        let Some(path) = env::var_os("HARNESS_HISTORY") else { return };
        let history = History::to_file(Path::new(&path));
        drop(history.enter("odd\tkey %\n", Instant::now() + SOON, "child", Some(1)));
        let _section = history.enter("a", Instant::now() + SOON * 10, "killed", None);
        println!("entered");
        thread::sleep(SOON * 10);
    }

    #[tokio::test]
    async fn several_processes_share_one_history() {
        let dir = temp_dir();
        let path = dir.path().join("history");
        let before = clock::now_ns();
        let file = path.to_str().expect("a plain path");
        let child = Process::of_this_test("histories::child_in_a_section", &[("HARNESS_HISTORY", file)]);
        child.wait_for_line("entered").await;
        child.kill();
        let history = History::to_file(&path);
        drop(history.enter("a", Instant::now() + SOON, "parent", None));
        let all = History::load(&path);
        let intervals = all.intervals();
        let after = clock::now_ns();
        assert_eq!(intervals.len(), 3);
        assert_eq!((intervals[0].key.as_str(), intervals[0].fence), ("odd\tkey %\n", Some(1)));
        assert!(intervals.iter().all(|interval| (before..after).contains(&interval.start)));
        assert_eq!(intervals[1].end, u64::MAX);
        let found: Vec<_> = all.violations().iter().map(names).collect();
        assert_eq!(found, [("overlap", "killed".into(), "parent".into())]);
    }
}

mod helpers {
    use super::*;
    use std::sync::Arc;

    #[tokio::test]
    async fn a_future_is_dropped_after_each_poll() {
        let three_polls = |alive: &Arc<()>| {
            let alive = Arc::clone(alive);
            async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                tokio::task::yield_now().await;
                Arc::strong_count(&alive)
            }
        };
        let alive = Arc::new(());
        for polls in 0..3 {
            assert!(poll::drop_after(three_polls(&alive), polls).await.is_pending());
            assert_eq!(Arc::strong_count(&alive), 1, "it is dropped at once");
        }
        assert_eq!(poll::drop_after(three_polls(&alive), 3).await, Poll::Ready(2));
        assert_eq!(poll::drop_after(three_polls(&alive), 99).await, Poll::Ready(2));
        assert_eq!(poll::count_polls(three_polls(&alive)).await, (2, 3));
        assert_eq!(poll::count_polls(async { 7 }).await, (7, 1));
        // Neighbours that wake the task are not taken for the future's own wake-ups.
        let noise = async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        };
        let (counted, ()) = tokio::join!(poll::count_polls(three_polls(&alive)), noise);
        assert_eq!(counted, (2, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_clock_stays_where_it_is() {
        let start = tokio::time::Instant::now();
        let real = Instant::now();
        clock::sleep(Duration::from_millis(20)).await;
        assert!(real.elapsed() >= Duration::from_millis(20));
        assert_eq!(clock::timeout(Duration::from_millis(20), pending::<()>()).await, None);
        let (server, proxy) = proxied().await;
        server.set("k", "v").await;
        assert_eq!(server.get("k").await.as_deref(), Some("v"));
        assert_eq!(start.elapsed(), Duration::ZERO);
        drop(proxy);
        // And time moves on when the test wants it to.
        tokio::time::sleep(SOON * 1_000).await;
    }

    #[tokio::test]
    async fn eventually_waits_or_panics() {
        let mut asked = 0;
        eventually("the third time", SOON, async || {
            asked += 1;
            asked == 3
        })
        .await;
        let never = tokio::spawn(eventually("pigs fly", Duration::from_millis(5), async || false));
        let panic = never.await.expect_err("they do not").into_panic();
        let message = panic.downcast_ref::<String>().expect("a message");
        assert!(message.contains("pigs fly") && message.contains("harness_works.rs"), "{message}");
    }

    #[test]
    fn ports_are_free_and_directories_vanish() {
        let ports: std::collections::HashSet<u16> = (0..100).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 100);
        let dir = temp_dir();
        fs::write(dir.path().join("file"), "text").expect("it can be written");
        let path = dir.path().to_owned();
        drop(dir);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn processes_are_paused_and_killed() {
        let dir = temp_dir();
        let file = dir.path().join("ticks");
        let mut command = Command::new("sh");
        command.args(["-c", "echo ready; while :; do echo tick >>\"$0\"; sleep 0.01; done"]).arg(&file);
        let process = Process::spawn_reading(&mut command).expect("there is a shell");
        process.wait_for_line("ready").await;
        let ticks = || fs::read_to_string(&file).map_or(0, |text| text.lines().count());
        eventually("it ticks", SOON, async || ticks() > 2).await;
        process.pause();
        // Twice is as good as once.
        process.pause();
        let paused = ticks();
        clock::sleep(BRIEF).await;
        assert_eq!(ticks(), paused);
        process.resume();
        eventually("it ticks on", SOON, async || ticks() > paused).await;
        assert_eq!(process.ended(), None);
        process.kill();
        assert!(process.ended().is_some());
        let mut quick = Command::new("sh");
        let quick =
            Process::spawn_reading(quick.args(["-c", "echo done; exit 3"])).expect("there is a shell");
        assert_eq!(quick.wait(SOON).await.code(), Some(3));
        assert_eq!(quick.wait_for_line("done").await, "done");
    }

    #[tokio::test]
    async fn processes_are_talked_to() {
        let mut command = Command::new("sh");
        command.args(["-c", "while read -r line; do echo \"heard $line\"; done"]);
        let process = Process::spawn_talking(&mut command).expect("there is a shell");
        for line in ["one", "two"] {
            process.say(line);
            assert_eq!(process.wait_for_line(line).await, format!("heard {line}"));
        }
    }
}
