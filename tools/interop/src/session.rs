//! A conversation with one agent: a line there, a line back.

use std::collections::HashMap;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::cleanup;
use crate::error::{Doing, Result, fail};
use crate::peer::agent::{self, Address, VERSION};

/// How the agent is reached.
#[derive(Debug)]
enum Channel {
    Child(Child),
    Stream(TcpStream),
}

/// An agent that waits for scenarios. Dropping it ends the conversation.
#[derive(Debug)]
pub struct Session {
    name: String,
    channel: Channel,
    lines: Receiver<String>,
    course: Arc<Course>,
    /// Its partner: name, and how that fares.
    partner: Option<(String, Arc<Course>)>,
    opened: String,
}

/// Whether an agent is there, has ended, or was told to: what came first.
#[derive(Debug, Default)]
struct Course(AtomicU8);

const DIED: u8 = 1;
const DISMISSED: u8 = 2;

impl Course {
    fn end(&self, how: u8) {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let _ = self.0.compare_exchange(0, how, order.0, order.1);
    }

    fn died(&self) -> bool {
        self.0.load(Ordering::Acquire) == DIED
    }
}

/// What an agent answered: the words behind "ok".
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Answer(HashMap<String, String>);

impl Answer {
    fn parse(words: &str) -> Self {
        let pairs = words.split_whitespace().filter_map(|w| w.split_once('='));
        Self(pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
    }

    /// A word of it, empty when it is not there.
    pub fn word(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    /// A number of it (decimal or 0x…), 0 when it is not there.
    pub fn number(&self, key: &str) -> u64 {
        let text = self.word(key);
        let parsed = match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => text.parse(),
        };
        parsed.unwrap_or(0)
    }
}

impl Session {
    /// Starts a program that speaks as an agent on its standard input and output.
    ///
    /// # Errors
    /// It cannot be started, or is of another version.
    pub fn start(name: &str, argv: &[String]) -> Result<Self> {
        Self::start_with(name, argv, &[])
    }

    /// The same with variables of the environment.
    ///
    /// # Errors
    /// As [`Session::start`].
    pub fn start_with(name: &str, argv: &[String], variables: &[(&str, &str)]) -> Result<Self> {
        let Some((program, arguments)) = argv.split_first() else {
            return fail("no program for the agent");
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .process_group(0);
        let mut child = command.spawn().doing(|| format!("starting {program}"))?;
        cleanup::process(child.id());
        let Some(out) = child.stdout.take() else {
            return fail("the agent has no output");
        };
        let mut session = Self::over_channel(name, Channel::Child(child), out);
        session.send(&format!("rocebud-interop {VERSION} verbs"))?;
        session.receive(30)?;
        Ok(session)
    }

    /// Meets an agent that serves.
    ///
    /// # Errors
    /// Nobody answers, or another version does.
    pub fn meet(name: &str, address: &Address) -> Result<Self> {
        let reader = address.open("verbs", &[])?;
        let stream = reader
            .get_ref()
            .try_clone()
            .doing(|| "a second handle".into())?;
        Ok(Self::over_channel(name, Channel::Stream(stream), reader))
    }

    fn over_channel(name: &str, channel: Channel, from: impl Read + Send + 'static) -> Self {
        let course = Arc::new(Course::default());
        Self {
            name: name.to_owned(),
            channel,
            lines: listen(from, Arc::clone(&course)),
            course,
            partner: None,
            opened: String::new(),
        }
    }

    /// From now on whoever waits for an answer of one of the two hears at once when the other ends: that
    /// it would wait for in vain, as long as it has patience.
    pub fn join(&mut self, other: &mut Self) {
        self.partner = Some((other.name.clone(), Arc::clone(&other.course)));
        other.partner = Some((self.name.clone(), Arc::clone(&self.course)));
    }

    /// The name of the partner, if that has ended of itself.
    fn bereft(&self) -> Option<&str> {
        let (name, course) = self.partner.as_ref()?;
        course.died().then_some(name)
    }

    /// Who it is, in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process, if it was started by us.
    pub fn pid(&self) -> Option<u32> {
        match &self.channel {
            Channel::Child(child) => Some(child.id()),
            Channel::Stream(_) => None,
        }
    }

    /// Says a line.
    ///
    /// # Errors
    /// The agent is gone.
    pub fn send(&mut self, line: &str) -> Result<()> {
        let bytes = format!("{line}\n");
        let sent = match &mut self.channel {
            Channel::Child(child) => match &mut child.stdin {
                Some(stdin) => stdin
                    .write_all(bytes.as_bytes())
                    .and_then(|()| stdin.flush()),
                None => Ok(()),
            },
            Channel::Stream(stream) => stream.write_all(bytes.as_bytes()),
        };
        sent.doing(|| format!("{}: {GONE}", self.name))
    }

    /// Waits for an answer.
    ///
    /// # Errors
    /// "error …" from the agent, its end or its partner's, or silence.
    pub fn receive(&mut self, seconds: u64) -> Result<Answer> {
        let line = self.line(seconds)?;
        match line.split_once(' ').unwrap_or((line.as_str(), "")) {
            ("ok", words) => Ok(Answer::parse(words)),
            ("error", why) => fail(format!("{}: {why}", self.name)),
            _ => fail(format!("{}: the agent says {line:?}", self.name)),
        }
    }

    fn line(&mut self, seconds: u64) -> Result<String> {
        let end = Instant::now() + Duration::from_secs(seconds);
        loop {
            match self.lines.recv_timeout(LOOK) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Disconnected) => {
                    return fail(format!("{}: {GONE}", self.name));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(partner) = self.bereft() {
                return fail(format!("{partner}: {GONE}; {} waited for it", self.name));
            }
            if Instant::now() >= end {
                return fail(format!(
                    "{}: the agent is silent for {seconds} s",
                    self.name
                ));
            }
        }
    }

    /// A line, and its answer.
    ///
    /// # Errors
    /// As [`Session::receive`].
    pub fn ask(&mut self, line: &str) -> Result<Answer> {
        self.send(line)?;
        self.receive(40)
    }

    /// Uses this device and address; asks only when it is another than the last.
    ///
    /// # Errors
    /// The device or the address is not there.
    pub fn open(&mut self, device: &str, address: &str) -> Result<()> {
        let line = format!("open dev={device} addr={address}");
        if self.opened != line {
            self.opened.clear();
            self.ask(&line)?;
            self.opened = line;
        }
        Ok(())
    }

    /// Forgets which device is open.
    pub fn closed(&mut self) {
        self.opened.clear();
    }
}

/// How often whoever waits for an agent looks whether its partner is still there.
const LOOK: Duration = Duration::from_millis(50);

/// How the end of an agent is told.
pub const GONE: &str = "the agent ended";

impl Drop for Session {
    fn drop(&mut self) {
        self.course.end(DISMISSED);
        // One whose partner has died waits for it.
        let patience = Duration::from_secs(if self.bereft().is_some() { 0 } else { 3 });
        match &mut self.channel {
            Channel::Child(child) => {
                drop(child.stdin.take());
                let pid = child.id();
                if self.lines.recv_timeout(patience) != Err(RecvTimeoutError::Disconnected) {
                    let _ = child.kill();
                }
                let _ = child.wait();
                cleanup::process_gone(pid);
            }
            Channel::Stream(stream) => {
                let _ = stream.shutdown(std::net::Shutdown::Both);
            }
        }
    }
}

fn listen(from: impl Read + Send + 'static, course: Arc<Course>) -> Receiver<String> {
    let (to, lines) = channel();
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        while let Ok(Some(line)) = agent::line(&mut from, None) {
            if to.send(line).is_err() {
                return;
            }
        }
        course.end(DIED);
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    fn agent(name: &str, script: &str) -> Session {
        let argv = ["sh", "-c", script].map(str::to_owned);
        Session::start(name, &argv).expect("a shell starts")
    }

    #[test]
    fn who_waits_for_an_agent_hears_of_the_end_of_its_partner() {
        let mut patient = agent("patient", "read l; echo ok; exec sleep 1000");
        let mut mortal = agent("mortal", "read l; echo ok; read l; exit");
        patient.join(&mut mortal);
        patient.send("request").expect("it listens");
        mortal.send("die").expect("it listens");
        let Error(why) = patient.receive(30).expect_err("it says nothing");
        assert_eq!(why, "mortal: the agent ended; patient waited for it");
        // One that is dismissed takes nobody along: its partner is let end as it likes.
        let file = std::env::temp_dir().join(format!("rocebud-session-{}", std::process::id()));
        let script = format!("read l; echo ok; cat; echo bye >{}", file.display());
        let mut polite = agent("polite", &script);
        let mut other = agent("other", "read l; echo ok; cat");
        polite.join(&mut other);
        drop(other);
        drop(polite);
        assert_eq!(
            std::fs::read_to_string(&file).ok().as_deref(),
            Some("bye\n")
        );
        let _ = std::fs::remove_file(file);
        // What an agent said before its partner's end is heard.
        let mut quick = agent(
            "quick",
            "read l; echo ok; read l; echo ok n=7; exec sleep 1000",
        );
        quick.join(&mut mortal);
        assert_eq!(quick.ask("request").map(|a| a.number("n")), Ok(7));
    }
}
