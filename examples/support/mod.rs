//! A Redis server for the examples that need a real one: that of `REDIS_URL`, or one of their own.

use std::{
    env,
    error::Error,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// A server that answers. One that was started here is killed when this is dropped.
pub(crate) struct Server {
    url: String,
    own: Option<(Running, TempDir)>,
}

impl Server {
    /// The server of `REDIS_URL`; without it, `redis-server` on a free port of the loopback interface.
    pub(crate) fn from_env_or_start() -> Result<Self, Box<dyn Error>> {
        match env::var("REDIS_URL") {
            Ok(url) => Ok(Self { url, own: None }),
            Err(_) => Self::start(),
        }
    }

    fn start() -> Result<Self, Box<dyn Error>> {
        // The port is free when it is looked for; should another program be quicker, look again.
        for _ in 0..5 {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            let folder = tempfile::tempdir()?;
            let mut server = Running(spawn(port, &folder)?);
            if server.answers(port)? {
                let url = format!("redis://127.0.0.1:{port}/");
                return Ok(Self { url, own: Some((server, folder)) });
            }
        }
        Err("redis-server was started and does not answer; set REDIS_URL to a server that does".into())
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// For the first line of the output.
    pub(crate) fn name(&self) -> &'static str {
        if self.own.is_some() {
            "a redis-server of its own (REDIS_URL names another)"
        } else {
            "the Redis server of REDIS_URL"
        }
    }
}

fn spawn(port: u16, folder: &TempDir) -> Result<Child, Box<dyn Error>> {
    let program = env::var("REDIS_SERVER_BIN").unwrap_or_else(|_| "redis-server".to_owned());
    Command::new(&program)
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| match error.kind() {
            ErrorKind::NotFound => format!(
                "this example needs a real Redis server, and there is no {program} here: install it \
                 (apt install redis-server, brew install redis), or set REDIS_URL to a server that runs"
            )
            .into(),
            _ => format!("cannot start {program}: {error}").into(),
        })
}

/// A process that does not outlive this value.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// `false` if it ended instead, as it does when the port is taken.
    fn answers(&mut self, port: u16) -> Result<bool, std::io::Error> {
        let patience = Instant::now() + Duration::from_secs(5);
        while Instant::now() < patience && self.0.try_wait()?.is_none() {
            if ping(port).is_ok_and(|answer| answer == *b"+PONG") {
                return Ok(true);
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(false)
    }
}

fn ping(port: u16) -> Result<[u8; 5], std::io::Error> {
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    connection.set_read_timeout(Some(Duration::from_secs(1)))?;
    connection.write_all(b"PING\r\n")?;
    let mut answer = [0; 5];
    connection.read_exact(&mut answer)?;
    Ok(answer)
}

impl Drop for Running {
    fn drop(&mut self) {
        // Nothing is left to do if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
