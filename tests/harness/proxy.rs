//! A TCP proxy in front of a server, for the faults that happen between the two.
//!
//! The proxy reads Redis' protocol: it knows where a request ends and which reply belongs to it. It runs on a thread
//! of its own, so it keeps working when the test's runtime is blocked, paused in time, or gone. All its switches
//! are plain functions that have taken effect when they return.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc as ack};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task;

use crate::feed::Feed;
use crate::{PATIENCE, free_port, lock, resp, stop_listening};

/// What happens to all that goes one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It goes through at once.
    Pass,
    /// It is delivered this much after it arrived, in order, even if the sender has hung up meanwhile.
    Delay(Duration),
    /// It is kept, in order, and delivered when the flow changes or [`Proxy::release`] is called, even if the sender
    /// has hung up meanwhile.
    Hold,
    /// It disappears.
    Swallow,
}

/// What happens to one request or its reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is delivered this much later, even if the client has hung up meanwhile.
    DelayRequest(Duration),
    /// The request is delivered when [`Proxy::release`] is called, even if the client has hung up meanwhile.
    HoldRequest,
    /// The request never reaches the server.
    SwallowRequest,
    /// The connection is cut, and the request never reaches the server.
    CutRequest,
    /// The reply is delivered this much later.
    DelayReply(Duration),
    /// The reply is delivered when [`Proxy::release`] is called at any time after the request was sent.
    HoldReply,
    /// The server executes the request, and the client hears nothing.
    SwallowReply,
    /// The server executes the request; then the connection is cut instead of replying.
    CutReply,
    /// The client gets these bytes as its reply, such as `-LOADING ...\r\n`; the server hears nothing.
    Answer(Vec<u8>),
}

impl Fault {
    /// The error reply with this text, such as `OOM command not allowed when used memory > 'maxmemory'.`
    #[must_use]
    pub fn error(text: &str) -> Self {
        Self::Answer(format!("-{text}\r\n").into_bytes())
    }
}

/// One request that a client sent, whatever became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// When it reached the proxy.
    pub at: Instant,
    /// Which connection carried it: 1 for the first that the proxy accepted.
    pub connection: u64,
    /// The command and its arguments.
    pub args: Vec<Vec<u8>>,
}

impl Command {
    /// Whether it is this command, in any case of its letters; `*` is any.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        name == "*" || self.args.first().is_some_and(|first| first.eq_ignore_ascii_case(name.as_bytes()))
    }

    /// The command and its arguments as text; bytes that are no UTF-8 are replaced.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        self.args.iter().map(|arg| String::from_utf8_lossy(arg).into_owned()).collect()
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().join(" "))
    }
}

/// A running proxy; dropping it cuts everything.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    control: Option<mpsc::UnboundedSender<Control>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    // Tells what is held that it may be held no longer.
    changed: watch::Sender<()>,
    commands: Feed<Command>,
    accepted: AtomicU64,
    bytes_from_clients: AtomicU64,
    bytes_from_server: AtomicU64,
}

struct State {
    target: u16,
    requests: Flow,
    replies: Flow,
    // How often `release` was called: what was held before a call is free after it.
    releases: u64,
    rules: Vec<Rule>,
    black_hole_new: bool,
    connections: HashMap<u64, Handle>,
}

struct Rule {
    wanted: Box<dyn Fn(&Command) -> bool + Send>,
    fault: Fault,
    once: bool,
}

struct Handle {
    silent: Arc<AtomicBool>,
    cut: mpsc::UnboundedSender<Cut>,
}

enum Cut {
    Both(Option<ack::Sender<()>>),
    Client(ack::Sender<()>),
}

enum Control {
    Refuse(ack::Sender<()>),
    Accept(ack::Sender<()>),
}

/// What one direction of one connection delivers next.
struct Item {
    bytes: Vec<u8>,
    when: When,
}

enum When {
    Now,
    At(Instant),
    Released {
        after: u64,
        or_by_flow: bool,
    },
    /// Not a delivery: the connection is cut here.
    Cut,
    /// Not a delivery: the other end has closed.
    End,
}

#[derive(Clone, Copy)]
enum Way {
    Requests,
    Replies,
}

/// What stands in the place of the next reply.
enum Expected {
    FromServer(Fate),
    Forged(Vec<u8>),
}

/// What happens to a reply when it arrives.
enum Fate {
    ByFlow,
    Swallowed,
    Delayed(Duration),
    // Decided when its request arrived, so that a release after that cannot come too early for the reply.
    Delivered(When),
}

impl Proxy {
    /// A proxy on a free port of the loopback interface that connects to `target`, a port there.
    ///
    /// # Panics
    ///
    /// If it cannot listen.
    #[must_use]
    pub fn start(target: u16) -> Self {
        let state = State {
            target,
            requests: Flow::Pass,
            replies: Flow::Pass,
            releases: 0,
            rules: Vec::new(),
            black_hole_new: false,
            connections: HashMap::new(),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: watch::Sender::new(()),
            commands: Feed::default(),
            accepted: AtomicU64::new(0),
            bytes_from_clients: AtomicU64::new(0),
            bytes_from_server: AtomicU64::new(0),
        });
        // Another process may take a free port before we do.
        let listener =
            (0..10).find_map(|_| std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).ok());
        let listener = listener.expect("the test's proxy found ten ports taken that had just been free");
        let port = listener.local_addr().expect("a listener knows its port").port();
        let (control, controls) = mpsc::unbounded_channel();
        let thread = {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name("harness-proxy".into()).spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("the runtime of the test's proxy could not be started");
                runtime.block_on(listen(listener, port, shared, controls));
            })
        };
        let thread = thread.expect("the thread of the test's proxy could not be started");
        Self { port, shared, control: Some(control), thread: Some(thread) }
    }

    /// The port to connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Connects new connections to another port; those that are there stay where they are.
    pub fn set_target(&self, port: u16) {
        lock(&self.shared.state).target = port;
    }

    /// What happens to requests that arrive from now on.
    pub fn requests(&self, flow: Flow) {
        self.change(|state| state.requests = flow);
    }

    /// What happens to replies (and pushes) that arrive from now on.
    pub fn replies(&self, flow: Flow) {
        self.change(|state| state.replies = flow);
    }

    /// Delivers everything that is held, and the replies that are to be held for requests that were sent already.
    ///
    /// What arrives later by a flow that is [`Flow::Hold`] is held again: to end that, change the flow.
    pub fn release(&self) {
        self.change(|state| state.releases += 1);
    }

    /// Makes everything normal again: flows, faults that are armed, new connections; and delivers what is held.
    ///
    /// Connections that were black-holed stay dead: what was lost on them is lost.
    ///
    /// # Panics
    ///
    /// If the proxy cannot listen on its port any more.
    pub fn pass(&self) {
        self.change(|state| {
            state.requests = Flow::Pass;
            state.replies = Flow::Pass;
            state.black_hole_new = false;
            state.rules.clear();
            state.releases += 1;
        });
        self.accept_new_connections();
    }

    /// Arms a fault for the next command of this name (`*` for any), once.
    pub fn next(&self, name: &str, fault: Fault) {
        self.add_rule(named(name), fault, true);
    }

    /// Arms a fault for the next command for which `wanted` holds, once.
    pub fn next_where(&self, wanted: impl Fn(&Command) -> bool + Send + 'static, fault: Fault) {
        self.add_rule(Box::new(wanted), fault, true);
    }

    /// Arms a fault for every command of this name (`*` for any), until [`clear_faults`](Self::clear_faults).
    pub fn every(&self, name: &str, fault: Fault) {
        self.add_rule(named(name), fault, false);
    }

    /// Arms a fault for every command for which `wanted` holds, until [`clear_faults`](Self::clear_faults).
    pub fn every_where(&self, wanted: impl Fn(&Command) -> bool + Send + 'static, fault: Fault) {
        self.add_rule(Box::new(wanted), fault, false);
    }

    /// Disarms all faults; the flows stay as they are.
    pub fn clear_faults(&self) {
        self.change(|state| state.rules.clear());
    }

    /// Forwards the next request, whatever it is, and cuts its connection when the server has executed it.
    pub fn cut_after_next_request(&self) {
        self.next("*", Fault::CutReply);
    }

    /// Cuts all connections, on both sides; requests that are delayed or held are lost.
    ///
    /// # Panics
    ///
    /// If the proxy does not react.
    pub fn cut(&self) {
        self.cut_with(|ack| Cut::Both(Some(ack)));
    }

    /// Cuts all connections on the client's side only: requests that are delayed or held are still delivered.
    ///
    /// # Panics
    ///
    /// If the proxy does not react.
    pub fn cut_clients(&self) {
        self.cut_with(Cut::Client);
    }

    /// Makes the connections that are there silent for ever in both directions, without closing them. New ones work.
    pub fn black_hole_existing(&self) {
        for handle in lock(&self.shared.state).connections.values() {
            handle.silent.store(true, Ordering::SeqCst);
        }
    }

    /// As [`black_hole_existing`](Self::black_hole_existing), and for new connections too: they are accepted, and
    /// nothing ever comes back.
    pub fn black_hole(&self) {
        self.change(|state| state.black_hole_new = true);
        self.black_hole_existing();
    }

    /// Refuses new connections, as a dead server does; those that are there stay.
    ///
    /// # Panics
    ///
    /// If the proxy does not react.
    pub fn refuse_new_connections(&self) {
        self.control(Control::Refuse);
    }

    /// Takes new connections again.
    ///
    /// # Panics
    ///
    /// If the proxy cannot listen on its port any more.
    pub fn accept_new_connections(&self) {
        self.control(Control::Accept);
    }

    /// The requests that clients sent so far, whatever became of them; handshakes too.
    #[must_use]
    pub fn commands(&self) -> Vec<Command> {
        self.shared.commands.list()
    }

    /// As [`commands`](Self::commands), and forgets them.
    #[allow(clippy::must_use_candidate, reason = "to forget them is a use of its own")]
    pub fn take_commands(&self) -> Vec<Command> {
        self.shared.commands.take()
    }

    /// Waits for a command of this name that is not forgotten, sent already or to come.
    ///
    /// # Panics
    ///
    /// If none comes within [`PATIENCE`].
    pub async fn wait_for(&self, name: &str) -> Command {
        self.wait_until(&format!("a {name}"), named(name)).await
    }

    /// Waits for a command that is not forgotten and for which `wanted` holds, sent already or to come.
    ///
    /// # Panics
    ///
    /// If none comes within [`PATIENCE`].
    pub async fn wait_for_where(&self, wanted: impl Fn(&Command) -> bool) -> Command {
        self.wait_until("such a command", wanted).await
    }

    async fn wait_until(&self, what: &str, wanted: impl Fn(&Command) -> bool) -> Command {
        self.shared.commands.find(PATIENCE, wanted).await.unwrap_or_else(|| {
            let sent: Vec<String> = self.commands().iter().map(ToString::to_string).collect();
            panic!("no client sent {what} within {PATIENCE:?}, but {sent:#?}")
        })
    }

    /// How many connections it has accepted.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many connections are there now.
    #[must_use]
    pub fn open(&self) -> usize {
        lock(&self.shared.state).connections.len()
    }

    /// Bytes that clients sent, whatever became of them.
    #[must_use]
    pub fn bytes_from_clients(&self) -> u64 {
        self.shared.bytes_from_clients.load(Ordering::SeqCst)
    }

    /// Bytes that the server sent, whatever became of them.
    #[must_use]
    pub fn bytes_from_server(&self) -> u64 {
        self.shared.bytes_from_server.load(Ordering::SeqCst)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut lock(&self.shared.state));
        self.shared.changed.send_replace(());
    }

    fn add_rule(&self, wanted: Box<dyn Fn(&Command) -> bool + Send>, fault: Fault, once: bool) {
        self.change(|state| state.rules.push(Rule { wanted, fault, once }));
    }

    fn cut_with(&self, cut: impl Fn(ack::Sender<()>) -> Cut) {
        let (done, all_done) = ack::channel();
        for handle in lock(&self.shared.state).connections.values() {
            // Fails for a connection that is ending by itself.
            handle.cut.send(cut(done.clone())).ok();
        }
        drop(done);
        // Each connection drops its sender when it is cut.
        let outcome = all_done.recv_timeout(PATIENCE);
        assert_eq!(outcome, Err(ack::RecvTimeoutError::Disconnected), "the test's proxy does not react");
    }

    fn control(&self, message: impl FnOnce(ack::Sender<()>) -> Control) {
        let (done, is_done) = ack::channel();
        let sent = self.control.as_ref().is_some_and(|control| control.send(message(done)).is_ok());
        assert!(sent && is_done.recv_timeout(PATIENCE).is_ok(), "the test's proxy does not react");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.control.take());
        self.thread.take().map(JoinHandle::join);
    }
}

fn named(name: &str) -> Box<dyn Fn(&Command) -> bool + Send> {
    let name = name.to_owned();
    Box::new(move |command| command.is(&name))
}

async fn listen(
    listener: std::net::TcpListener,
    port: u16,
    shared: Arc<Shared>,
    mut controls: mpsc::UnboundedReceiver<Control>,
) {
    let bind = || async {
        TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .await
            .unwrap_or_else(|error| panic!("the test's proxy cannot listen on port {port}: {error}"))
    };
    let ours = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
    let mut listener = Some(ours.expect("tokio takes a listener that was just made"));
    loop {
        let accept = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            message = controls.recv() => match message {
                None => return,
                Some(Control::Refuse(done)) => {
                    listener.take().as_ref().map(stop_listening);
                    done.send(()).ok();
                }
                Some(Control::Accept(done)) => {
                    if listener.is_none() {
                        listener = Some(bind().await);
                    }
                    done.send(()).ok();
                }
            },
            accepted = accept => {
                // An error is that of a client that was gone before it was served.
                if let Ok((client, _)) = accepted {
                    admit(&shared, client);
                }
            }
        }
    }
}

fn admit(shared: &Arc<Shared>, client: TcpStream) {
    let (cut, cuts) = mpsc::unbounded_channel();
    let mut state = lock(&shared.state);
    let id = shared.accepted.fetch_add(1, Ordering::SeqCst) + 1;
    let silent = Arc::new(AtomicBool::new(state.black_hole_new));
    state.connections.insert(id, Handle { silent: Arc::clone(&silent), cut: cut.clone() });
    let link = Arc::new(Link { id, shared: Arc::clone(shared), silent, cut, expected: Mutex::default() });
    let target = state.target;
    drop(state);
    task::spawn(async move {
        link.serve(client, target, cuts).await;
        lock(&link.shared.state).connections.remove(&link.id);
    });
}

/// One connection of a client and the one to the server that belongs to it.
struct Link {
    id: u64,
    shared: Arc<Shared>,
    silent: Arc<AtomicBool>,
    cut: mpsc::UnboundedSender<Cut>,
    expected: Mutex<VecDeque<Expected>>,
}

impl Link {
    async fn serve(self: &Arc<Self>, client: TcpStream, target: u16, mut cuts: mpsc::UnboundedReceiver<Cut>) {
        let server = tokio::select! {
            connected = TcpStream::connect((Ipv4Addr::LOCALHOST, target)) => connected,
            _ = cuts.recv() => return,
        };
        let Ok(server) = server else {
            if self.silent() {
                // The client must not learn from a closed connection that the server is down.
                cuts.recv().await;
            }
            return;
        };
        // Where it fails, small packets are late by some milliseconds.
        client.set_nodelay(true).ok();
        server.set_nodelay(true).ok();
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let (requests, request_queue) = mpsc::unbounded_channel();
        let (replies, reply_queue) = mpsc::unbounded_channel();

        let mut client_side = task::JoinSet::new();
        client_side.spawn(Arc::clone(self).read_client(from_client, requests, replies.clone()));
        let mut delivery = task::JoinSet::new();
        delivery.spawn(Arc::clone(self).write(Way::Replies, to_client, reply_queue));
        let mut server_side = task::JoinSet::new();
        server_side.spawn(Arc::clone(self).write(Way::Requests, to_server, request_queue));
        let mut server_reader = task::JoinSet::new();
        server_reader.spawn(Arc::clone(self).read_server(from_server, replies));

        // It ends when the server has closed and what it said has been delivered, if there is a client to hear it.
        while !(server_reader.is_empty() && delivery.is_empty()) {
            tokio::select! {
                Some(cut) = cuts.recv() => {
                    client_side.shutdown().await;
                    delivery.shutdown().await;
                    if matches!(cut, Cut::Both(_)) {
                        server_side.shutdown().await;
                        server_reader.shutdown().await;
                        // Before the cut is acknowledged: it is not open then.
                        lock(&self.shared.state).connections.remove(&self.id);
                    }
                    match cut {
                        Cut::Both(done) => drop(done),
                        Cut::Client(done) => drop(done),
                    }
                }
                Some(_) = server_reader.join_next() => {}
                Some(_) = delivery.join_next() => {}
            }
        }
    }

    async fn read_client(
        self: Arc<Self>,
        mut client: OwnedReadHalf,
        to_server: mpsc::UnboundedSender<Item>,
        to_client: mpsc::UnboundedSender<Item>,
    ) {
        let mut buffer = Vec::new();
        // What speaks another protocol is passed through as it comes.
        let mut opaque = false;
        loop {
            match client.read_buf(&mut buffer).await {
                Ok(count) if count > 0 => {
                    self.shared.bytes_from_clients.fetch_add(count as u64, Ordering::SeqCst);
                }
                _ => break,
            }
            let mut done = 0;
            while !opaque {
                match resp::request(&buffer[done..]) {
                    Ok(Some(resp::Request { args, length })) => {
                        let bytes = &buffer[done..done + length];
                        self.admit_request(args, bytes, &to_server, &to_client);
                        done += length;
                    }
                    Ok(None) => break,
                    Err(resp::Malformed) => opaque = true,
                }
            }
            buffer.drain(..done);
            if opaque {
                self.send_by_flow(Way::Requests, std::mem::take(&mut buffer), &to_server);
            }
        }
        if self.silent() {
            // Nor does the server hear that the client has gone.
            std::future::pending::<()>().await;
        }
    }

    fn admit_request(
        &self,
        args: Vec<Vec<u8>>,
        bytes: &[u8],
        to_server: &mpsc::UnboundedSender<Item>,
        to_client: &mpsc::UnboundedSender<Item>,
    ) {
        let command = Command { at: Instant::now(), connection: self.id, args };
        if !self.silent() {
            self.forward(self.fault_for(&command), bytes, to_server, to_client);
        }
        // Last: who waits for the command may then release it, or arm a fault that is meant for the next one. Its
        // reply cannot come first, because this thread is the only one that delivers.
        self.shared.commands.push(command);
    }

    fn forward(
        &self,
        fault: Option<Fault>,
        bytes: &[u8],
        to_server: &mpsc::UnboundedSender<Item>,
        to_client: &mpsc::UnboundedSender<Item>,
    ) {
        let expect = |fate| lock(&self.expected).push_back(Expected::FromServer(fate));
        let send = |when| to_server.send(Item { bytes: bytes.to_vec(), when }).ok();
        match fault {
            Some(Fault::SwallowRequest) => {}
            Some(Fault::CutRequest) => {
                send(When::Cut);
            }
            Some(Fault::Answer(reply)) => {
                let mut expected = lock(&self.expected);
                if expected.is_empty() {
                    to_client.send(Item { bytes: reply, when: When::Now }).ok();
                } else {
                    expected.push_back(Expected::Forged(reply));
                }
            }
            Some(Fault::DelayRequest(delay)) => {
                expect(Fate::ByFlow);
                send(When::At(Instant::now() + delay));
            }
            Some(Fault::HoldRequest) => {
                expect(Fate::ByFlow);
                send(self.held(false));
            }
            Some(Fault::DelayReply(delay)) => {
                expect(Fate::Delayed(delay));
                send(When::Now);
            }
            Some(Fault::HoldReply) => {
                expect(Fate::Delivered(self.held(false)));
                send(When::Now);
            }
            Some(Fault::SwallowReply) => {
                expect(Fate::Swallowed);
                send(When::Now);
            }
            Some(Fault::CutReply) => {
                expect(Fate::Delivered(When::Cut));
                send(When::Now);
            }
            None => {
                if let Some(when) = self.by_flow(Way::Requests) {
                    expect(Fate::ByFlow);
                    send(when);
                }
            }
        }
    }

    fn fault_for(&self, command: &Command) -> Option<Fault> {
        let mut state = lock(&self.shared.state);
        let index = state.rules.iter().position(|rule| (rule.wanted)(command))?;
        let rule = &state.rules[index];
        let fault = rule.fault.clone();
        if rule.once {
            state.rules.remove(index);
        }
        Some(fault)
    }

    async fn read_server(self: Arc<Self>, mut server: OwnedReadHalf, to_client: mpsc::UnboundedSender<Item>) {
        let mut buffer = Vec::new();
        let mut opaque = false;
        loop {
            match server.read_buf(&mut buffer).await {
                Ok(count) if count > 0 => {
                    self.shared.bytes_from_server.fetch_add(count as u64, Ordering::SeqCst);
                }
                _ => break,
            }
            let mut done = 0;
            while !opaque {
                match resp::reply(&buffer[done..]) {
                    Ok(Some(length)) => {
                        let bytes = buffer[done..done + length].to_vec();
                        done += length;
                        self.admit_reply(bytes, &to_client);
                    }
                    Ok(None) => break,
                    Err(resp::Malformed) => opaque = true,
                }
            }
            buffer.drain(..done);
            if opaque {
                self.send_by_flow(Way::Replies, std::mem::take(&mut buffer), &to_client);
            }
        }
        if self.silent() {
            std::future::pending::<()>().await;
        }
        to_client.send(Item { bytes: Vec::new(), when: When::End }).ok();
    }

    fn admit_reply(&self, bytes: Vec<u8>, to_client: &mpsc::UnboundedSender<Item>) {
        if resp::is_push(&bytes) {
            self.send_by_flow(Way::Replies, bytes, to_client);
            return;
        }
        // Locked to the end, so that no forged reply overtakes this one.
        let mut expected = lock(&self.expected);
        let fate = match expected.pop_front() {
            Some(Expected::FromServer(fate)) => fate,
            // Something that nobody asked for, such as the lines of MONITOR.
            Some(forged @ Expected::Forged(_)) => {
                expected.push_front(forged);
                Fate::ByFlow
            }
            None => Fate::ByFlow,
        };
        let when = match fate {
            Fate::ByFlow => self.by_flow(Way::Replies),
            Fate::Swallowed => None,
            Fate::Delayed(delay) => Some(When::At(Instant::now() + delay)),
            Fate::Delivered(when) => Some(when),
        };
        if let Some(when) = when {
            to_client.send(Item { bytes, when }).ok();
        }
        while let Some(Expected::Forged(_)) = expected.front() {
            if let Some(Expected::Forged(bytes)) = expected.pop_front() {
                to_client.send(Item { bytes, when: When::Now }).ok();
            }
        }
    }

    fn send_by_flow(&self, way: Way, bytes: Vec<u8>, to: &mpsc::UnboundedSender<Item>) {
        if let Some(when) = self.by_flow(way) {
            to.send(Item { bytes, when }).ok();
        }
    }

    fn by_flow(&self, way: Way) -> Option<When> {
        let flow = way.flow(&lock(&self.shared.state));
        match flow {
            Flow::Pass => Some(When::Now),
            Flow::Delay(delay) => Some(When::At(Instant::now() + delay)),
            Flow::Hold => Some(self.held(true)),
            Flow::Swallow => None,
        }
    }

    fn held(&self, or_by_flow: bool) -> When {
        When::Released { after: lock(&self.shared.state).releases, or_by_flow }
    }

    fn silent(&self) -> bool {
        self.silent.load(Ordering::SeqCst)
    }

    // Delivers what is queued, in order. Returning closes this direction.
    async fn write(
        self: Arc<Self>,
        way: Way,
        mut to: OwnedWriteHalf,
        mut queue: mpsc::UnboundedReceiver<Item>,
    ) {
        while let Some(item) = queue.recv().await {
            match item.when {
                When::Now => {}
                When::At(at) => tokio::time::sleep_until(at.into()).await,
                When::Released { after, or_by_flow } => self.released(way, after, or_by_flow).await,
                When::End => return,
                When::Cut => {
                    self.cut.send(Cut::Both(None)).ok();
                    return std::future::pending().await;
                }
            }
            if !self.silent() {
                // If the receiver is gone, the sender hears of that from the other direction.
                to.write_all(&item.bytes).await.ok();
            }
        }
    }

    async fn released(&self, way: Way, after: u64, or_by_flow: bool) {
        let mut changes = self.shared.changed.subscribe();
        // The sender is in `shared`, so it outlives this wait.
        changes
            .wait_for(|()| {
                let state = lock(&self.shared.state);
                state.releases > after || (or_by_flow && way.flow(&state) != Flow::Hold)
            })
            .await
            .ok();
    }
}

impl Way {
    fn flow(self, state: &State) -> Flow {
        match self {
            Self::Requests => state.requests,
            Self::Replies => state.replies,
        }
    }
}
