//! Talking to an agent: in the guest, on another machine, or beside us.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Doing, Error, Result, fail};
use crate::netns;

/// Must be the same as the agent's (`AGENT_VERSION` in `agent/agent.h`).
pub const VERSION: u32 = 1;

/// Longest line of an agent, bytes: its answers have some hundreds, far below this.
const LINE_MAX: usize = 1 << 20;
/// Longest piece of what a command says, bytes: agents send what one read gave them, 16 KiB at most.
const PIECE_MAX: usize = 1 << 16;
/// How long a greeting may take, once its first byte has come.
const GREETING: Duration = Duration::from_secs(20);

/// Where an agent answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// The namespace from which it is reached.
    pub namespace: Option<String>,
    /// Its socket.
    pub socket: SocketAddr,
}

/// A command that ran there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// As a shell has it; 124 when its time was up.
    pub code: i32,
    /// Standard output and error together.
    pub output: String,
}

impl Address {
    /// What to do about one that does not answer: the guest's is ours.
    fn remedy(&self) -> &'static str {
        if self.namespace.is_none() {
            "; start it there: rocebud interop agent --listen ADDRESS"
        } else {
            ""
        }
    }

    fn connect(&self) -> Result<TcpStream> {
        let connect = || {
            TcpStream::connect_timeout(&self.socket, Duration::from_secs(5))
                .doing(|| format!("the agent at {} does not answer", self.socket))
                .map_err(|Error(why)| Error(why + self.remedy()))
        };
        let stream = match &self.namespace {
            Some(name) => netns::enter(name, connect)?,
            None => connect()?,
        };
        stream
            .set_nodelay(true)
            .doing(|| "a socket option".into())?;
        Ok(stream)
    }

    /// Opens a connection of this kind and checks that both sides are of one version.
    ///
    /// # Errors
    /// Nobody answers in ten seconds, or another version does.
    pub fn open(&self, kind: &str, payload: &[u8]) -> Result<BufReader<TcpStream>> {
        let mut stream = self.connect()?;
        let timeout = |t| {
            stream
                .set_read_timeout(t)
                .doing(|| "a socket option".into())
        };
        timeout(Some(GREETING))?;
        let hello = format!("rocebud-interop {VERSION} {kind}\n");
        stream
            .write_all(hello.as_bytes())
            .doing(|| "greeting the agent".into())?;
        stream
            .write_all(payload)
            .doing(|| "greeting the agent".into())?;
        let mut reader = BufReader::new(stream);
        greeted(&mut reader).doing(|| format!("the agent at {}", self.socket))?;
        reader
            .get_ref()
            .set_read_timeout(None)
            .doing(|| "a socket option".into())?;
        Ok(reader)
    }

    /// Runs a shell command to its end.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn run(&self, command: &str, seconds: u64) -> Result<Ended> {
        self.start(command, seconds)?.finish()
    }

    /// Runs a shell command that must exit with 0.
    ///
    /// # Errors
    /// It did not; what it said.
    pub fn must(&self, command: &str, seconds: u64) -> Result<String> {
        let ended = self.run(command, seconds)?;
        if ended.code == 0 {
            return Ok(ended.output);
        }
        fail(format!(
            "in the guest, {command}: exit status {}\n{}",
            ended.code, ended.output
        ))
    }

    /// Starts a shell command.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn start(&self, command: &str, seconds: u64) -> Result<Started> {
        let kind = format!("run {seconds} {}", command.len());
        let reader = self.open(&kind, command.as_bytes())?;
        let stream = reader
            .get_ref()
            .try_clone()
            .doing(|| "a second handle".into())?;
        let said = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&said);
        let thread = std::thread::spawn(move || listen(reader, &into));
        let end = Instant::now() + Duration::from_secs(seconds + 30);
        Ok(Started {
            stream,
            said,
            thread,
            end,
        })
    }

    /// Puts a file there.
    ///
    /// # Errors
    /// The agent cannot write it.
    pub fn put(&self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        let kind = format!("put {mode:o} {} {path}", content.len());
        let mut reader = self.open(&kind, content)?;
        reader
            .get_ref()
            .set_read_timeout(Some(Duration::from_secs(60)))
            .doing(|| "a socket option".into())?;
        greeted(&mut reader)
    }
}

/// A line without its end; none where nothing more comes.
///
/// # Errors
/// It has more than [`LINE_MAX`] bytes, or it is not whole at `end`; what reading says.
pub(crate) fn line(reader: &mut impl BufRead, end: Option<Instant>) -> io::Result<Option<String>> {
    let mut said = Vec::new();
    loop {
        let got = reader.fill_buf()?;
        let whole = got.iter().position(|&byte| byte == b'\n');
        let taken = whole.unwrap_or(got.len());
        said.extend(got.get(..taken).unwrap_or_default());
        let over = whole.is_some() || got.is_empty();
        reader.consume(taken + usize::from(whole.is_some()));
        if said.len() > LINE_MAX {
            return Err(io::Error::other("a line without an end"));
        }
        if over {
            let nothing = whole.is_none() && said.is_empty();
            return Ok((!nothing).then(|| String::from_utf8_lossy(&said).into_owned()));
        }
        if end.is_some_and(|end| Instant::now() > end) {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

/// The agent's first answer.
pub(crate) fn greeted(reader: &mut impl BufRead) -> Result<()> {
    let Ok(line) = line(reader, Some(Instant::now() + GREETING)) else {
        return fail("what listens there does not greet: is it an agent of rocebud interop?");
    };
    let Some(line) = line else {
        return fail("what listens there hangs up: is it an agent of rocebud interop?");
    };
    let line = line.trim();
    match line.strip_prefix("error ") {
        Some(why) => fail(format!("it refuses: {why}")),
        None if line == "ok" || line.starts_with("ok ") => Ok(()),
        None => fail(format!(
            "what answers there is no agent of rocebud interop: {line:?}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_ok_with_or_without_words_or_says_why_not() {
        for right in ["ok\n", "ok 1\n"] {
            assert_eq!(greeted(&mut right.as_bytes()), Ok(()), "{right:?}");
        }
        let other = greeted(&mut &b"error agent version 2, runner version 1\n"[..]);
        assert!(other.is_err_and(|e| e.0.contains("version 2")));
        assert!(greeted(&mut &b"220 mail ready\n"[..]).is_err_and(|e| e.0.contains("no agent")));
        assert!(greeted(&mut &b""[..]).is_err());
    }

    #[test]
    fn a_line_without_an_end_is_no_greeting() {
        let mut endless = BufReader::new(io::repeat(b'A'));
        assert!(greeted(&mut endless).is_err_and(|e| e.0.contains("does not greet")));
    }

    #[test]
    fn lines_are_taken_one_by_one() {
        let mut both = BufReader::with_capacity(3, &b"first\n\nthird"[..]);
        for expected in [Some("first"), Some(""), Some("third"), None] {
            let is = line(&mut both, None).expect("memory can be read");
            assert_eq!(is.as_deref(), expected);
        }
    }

    #[test]
    fn what_a_command_says_is_kept_and_a_piece_beyond_every_bound_ends_it() {
        for (says, keeps, ends) in [
            ("o 3\nabco 1\ndx 7\n", "abcd", Some(7)),
            ("o 99999999999999999\nabc", "", None),
            ("o 5\nabc", "", None),
        ] {
            let said = Mutex::new(Vec::new());
            assert_eq!(listen(says.as_bytes(), &said), ends, "{says:?}");
            assert_eq!(said.into_inner().unwrap(), keeps.as_bytes());
        }
    }
}

fn listen(mut reader: impl BufRead, into: &Mutex<Vec<u8>>) -> Option<i32> {
    loop {
        let line = line(&mut reader, None).ok()??;
        let (kind, number) = line.trim().split_once(' ')?;
        if kind == "x" {
            return number.parse().ok();
        }
        let length: usize = number.parse().ok()?;
        if length > PIECE_MAX {
            return None;
        }
        let mut bytes = vec![0; length];
        reader.read_exact(&mut bytes).ok()?;
        into.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(bytes);
    }
}

/// A command that runs there. Dropping it ends it.
#[derive(Debug)]
pub struct Started {
    stream: TcpStream,
    said: Arc<Mutex<Vec<u8>>>,
    thread: JoinHandle<Option<i32>>,
    end: Instant,
}

impl Started {
    /// What it has said so far.
    pub fn output(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Has it ended?
    pub fn over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// The agent is gone.
    pub fn finish(self) -> Result<Ended> {
        while !self.thread.is_finished() {
            if Instant::now() > self.end {
                return fail(
                    "the agent does not end a command whose time is up: is the guest alive?",
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let Self {
            thread,
            said,
            stream,
            ..
        } = self;
        let code = thread.join().ok().flatten();
        let _ = stream.shutdown(std::net::Shutdown::Both);
        let said = said.lock().unwrap_or_else(PoisonError::into_inner);
        let output = String::from_utf8_lossy(&said).into_owned();
        let gone = || {
            Error(format!(
                "the agent is gone; its command had said:\n{output}"
            ))
        };
        Ok(Ended {
            code: code.ok_or_else(gone)?,
            output: output.clone(),
        })
    }

    /// Ends it.
    pub fn kill(self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        let _ = self.thread.join();
    }
}
