//! One connection to one Redis: made, set up, and used for one renewal at a time.
//!
//! Promises: connecting, each read and each write end within the timeout; errors name the step and never quote a
//! handshake command or its arguments (they hold passwords).
//! Risks: resolving a host name takes as long as the system's resolver does.

use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::held::{Call, Outcome};
use super::resp::{self, Reply};
use super::tls::{self, TlsOptions};

/// Errors of a whole server, not of one queue: another connection may reach a better one.
const SERVER_ERRORS: [&str; 4] = ["READONLY", "MASTERDOWN", "LOADING", "NOAUTH"];
/// What a write's reply begins with: sequence and h.
const HEAD_BYTES: usize = 12;

pub enum Address {
    Tcp(String),
    Unix(PathBuf),
}

impl Address {
    /// `host:port`, `[::1]:6379` or `unix:/path`.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Self::Tcp(text.to_owned()))
            }
            _ => Err(format!("expected an address \"host:port\" or \"unix:/path\", came {text:?}")),
        }
    }
}

/// Where to connect and what to say first.
pub struct Target {
    pub address: Address,
    pub handshake: Vec<Vec<u8>>,
    pub script: Vec<u8>,
    pub session: [u8; 8],
    pub tls: Option<TlsOptions>,
    pub timeout: Duration,
}

/// A second handle on a connection's socket, to end a blocked read from another thread.
pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub fn shut_down(&self) {
        // It fails only when the peer has ended the connection already.
        let _ = match self {
            Self::Tcp(socket) => socket.shutdown(Shutdown::Both),
            Self::Unix(socket) => socket.shutdown(Shutdown::Both),
        };
    }
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

pub struct Connection {
    stream: BufReader<Box<dyn Stream>>,
    sha: Vec<u8>,
}

impl Connection {
    /// Connect, shake hands, load the script. `register` gets the socket before anything is awaited on it.
    pub fn open(
        target: &Target,
        register: impl FnOnce(Socket) -> Result<(), String>,
    ) -> Result<Self, String> {
        let (stream, socket) =
            connect(target).map_err(|error| format!("connect: {}", describe(&error, target.timeout)))?;
        register(socket)?;
        let stream: Box<dyn Stream> = match (stream, &target.tls) {
            (Socket::Unix(stream), _) => Box::new(stream),
            (Socket::Tcp(stream), None) => Box::new(stream),
            (Socket::Tcp(stream), Some(options)) => {
                Box::new(tls::wrap(stream, options).map_err(|error| format!("tls: {error}"))?)
            }
        };
        let mut connection = Self { stream: BufReader::new(stream), sha: Vec::new() };
        connection.shake_hands(target)?;
        connection.load(target)?;
        Ok(connection)
    }

    /// Send `call` and say what became of it; after `Broken` the connection is of no more use.
    pub fn renew(&mut self, target: &Target, call: &Call) -> Outcome {
        let mut reply = self.evaluate(target, call);
        if matches!(&reply, Ok(Reply::Error(error)) if code(error) == "NOSCRIPT") {
            reply = match self.load(target) {
                Ok(()) => self.evaluate(target, call),
                Err(error) => return Outcome::Broken(error),
            };
        }
        match reply {
            Ok(reply) => outcome(&reply, call),
            Err(error) => Outcome::Broken(format!("renew: {}", describe(&error, target.timeout))),
        }
    }

    fn shake_hands(&mut self, target: &Target) -> Result<(), String> {
        let failed = |error: &io::Error| format!("handshake: {}", describe(error, target.timeout));
        self.send(&target.handshake.concat()).map_err(|error| failed(&error))?;
        let count = target.handshake.len();
        for position in 1..=count {
            if let Reply::Error(error) = resp::read(&mut self.stream).map_err(|error| failed(&error))? {
                return Err(format!(
                    "handshake command {position} of {count} was refused: {}",
                    without_arguments(&error)
                ));
            }
        }
        Ok(())
    }

    fn load(&mut self, target: &Target) -> Result<(), String> {
        let command = resp::encode([b"SCRIPT".as_slice(), b"LOAD", &target.script].into_iter());
        match self.ask(&command) {
            Ok(Reply::Text(sha)) => {
                self.sha = sha;
                Ok(())
            }
            Ok(Reply::Error(error)) => Err(format!("SCRIPT LOAD was refused: {error}")),
            Ok(other) => Err(format!("expected a sha from SCRIPT LOAD, came {other:?}")),
            Err(error) => Err(format!("SCRIPT LOAD: {}", describe(&error, target.timeout))),
        }
    }

    fn evaluate(&mut self, target: &Target, call: &Call) -> io::Result<Reply> {
        let count = call.keys.len().to_string();
        let lane = [target.session.as_slice(), &call.queue.to_be_bytes()].concat();
        let (sequence, jobs, own) = (call.sequence.to_be_bytes(), call.jobs.concat(), call.own.concat());
        let mut arguments = vec![b"EVALSHA".as_slice(), &self.sha, count.as_bytes()];
        arguments.extend(call.keys.iter().map(Vec::as_slice));
        let lease_ms = call.lease_ms.to_string();
        // any version
        arguments.extend([lane.as_slice(), &sequence, b"", &jobs, &own, lease_ms.as_bytes()]);
        let command = resp::encode(arguments.into_iter());
        self.ask(&command)
    }

    fn ask(&mut self, command: &[u8]) -> io::Result<Reply> {
        self.send(command)?;
        resp::read(&mut self.stream)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let stream = self.stream.get_mut();
        stream.write_all(bytes)?;
        stream.flush()
    }
}

fn connect(target: &Target) -> io::Result<(Socket, Socket)> {
    match &target.address {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(target.timeout))?;
            stream.set_write_timeout(Some(target.timeout))?;
            let second = stream.try_clone()?;
            Ok((Socket::Unix(stream), Socket::Unix(second)))
        }
        Address::Tcp(address) => {
            let stream = connect_tcp(address, target.timeout)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(target.timeout))?;
            stream.set_write_timeout(Some(target.timeout))?;
            let second = stream.try_clone()?;
            Ok((Socket::Tcp(stream), Socket::Tcp(second)))
        }
    }
}

/// The first address of the name that answers; all of them together within `timeout`.
fn connect_tcp(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    let end = Instant::now() + timeout;
    let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{address} has no address"));
    for candidate in addresses {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(&candidate, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn outcome(reply: &Reply, call: &Call) -> Outcome {
    match reply {
        Reply::Error(error) => refusal(error),
        Reply::Text(text)
            if text.starts_with(&call.sequence.to_be_bytes())
                && text.len() >= HEAD_BYTES
                && text.len() % 2 == 0 =>
        {
            let pairs = text[HEAD_BYTES..].chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
            Outcome::Renewed(pairs.map(usize::from).collect())
        }
        _ => Outcome::Broken(format!("expected sequence {}, h and refused, came {reply:?}", call.sequence)),
    }
}

fn refusal(error: &str) -> Outcome {
    match code(error) {
        "QUEUE_NOT_FOUND" => Outcome::Gone,
        server if SERVER_ERRORS.contains(&server) => Outcome::Broken(error.to_owned()),
        _ => Outcome::Refused(error.to_owned()),
    }
}

fn code(error: &str) -> &str {
    error.split(' ').next().unwrap_or_default()
}

/// An unknown command's error quotes its arguments; of `HELLO 2 AUTH user password` they are a secret.
fn without_arguments(error: &str) -> &str {
    error.split(", with args").next().unwrap_or_default()
}

fn describe(error: &io::Error, timeout: Duration) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("no answer within {timeout:?}")
        }
        _ => error.to_string(),
    }
}
