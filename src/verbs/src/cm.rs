//! What a process asks the connection manager in the daemon. Queue pairs are moved by whoever
//! asks; see [`CmRequest::QpAttr`].

use std::os::fd::OwnedFd;
use std::sync::Arc;

pub use rocebud_ctl::cm::{
    CmAddr, CmAh, CmAnswer, CmBound, CmDatagram, CmDetails, CmEce, CmEvent, CmOption, CmParam,
    CmPath, CmQpAttr, CmRequest, CmRoute, PRIVATE_DATA_MAX,
};
use rocebud_objects::{Errno, Misuse};
use rocebud_runtime::Runtime;

/// The connection manager, as one process sees it. Numbers of channels and identifiers belong to
/// the manager that gave them.
#[derive(Clone, Debug)]
pub struct Manager(Arc<Runtime>);

const REFUSED: &str = "the connection manager refused this";
const OUT_OF_STEP: Misuse = Misuse::new(
    Errno::EIO,
    "the daemon gave an answer that belongs to another question",
);

impl Manager {
    /// The manager of this process's network namespace; starts the daemon if there is none.
    ///
    /// # Errors
    /// As [`device_list`](crate::device_list).
    pub fn get() -> Result<Self, Misuse> {
        Runtime::get().map(Self)
    }

    /// Tells managers apart, as long as one of them is kept.
    #[must_use]
    pub fn key(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// The process is a child made by fork: nothing of this manager is its own.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.0.is_inherited()
    }

    /// This process is in the network namespace of its daemon: its own sockets have the addresses
    /// that the devices have.
    ///
    /// # Errors
    /// EMFILE, ENFILE: there is no descriptor to ask with.
    pub fn is_here(&self) -> Result<bool, Misuse> {
        self.0.is_here()
    }

    /// The daemon is gone, and with it everything that it kept. [`Manager::get`] gives another one.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.0.is_dead()
    }

    /// A channel: its number, and the socket that is readable while events wait.
    ///
    /// # Errors
    /// EIO: the daemon is gone. ENOMEM, EMFILE: too many channels.
    pub fn open_channel(&self) -> Result<(u32, OwnedFd), Misuse> {
        match self.0.cm(CmRequest::OpenChannel)? {
            (CmAnswer::Channel(channel), Some(socket)) => Ok((channel, socket)),
            (answer, _) => Err(refusal(&answer)),
        }
    }

    /// Asks for something.
    ///
    /// # Errors
    /// EIO: the daemon is gone, or a child made by fork. Else what the manager refuses with.
    pub fn ask(&self, request: CmRequest) -> Result<CmAnswer, Misuse> {
        match self.0.cm(request)?.0 {
            CmAnswer::Refused(errno) => Err(Misuse::new(Errno(errno), REFUSED)),
            answer => Ok(answer),
        }
    }

    /// Asks for something that has no other answer than "done".
    ///
    /// # Errors
    /// As [`Manager::ask`].
    pub fn tell(&self, request: CmRequest) -> Result<(), Misuse> {
        match self.ask(request)? {
            CmAnswer::Done => Ok(()),
            answer => Err(refusal(&answer)),
        }
    }
}

/// What an answer that does not fit its question means.
#[must_use]
pub fn refusal(answer: &CmAnswer) -> Misuse {
    match answer {
        CmAnswer::Refused(errno) => Misuse::new(Errno(*errno), REFUSED),
        _ => OUT_OF_STEP,
    }
}
