//! Notes of a queue pair in sentences.

use rocebud_ctl::page::NoteLine;
use rocebud_engine::Reason;
use rocebud_objects::{NoteKind, QpState, WcStatus};

/// What a note says.
pub(crate) fn sentence(line: &NoteLine) -> String {
    let psn = format!("psn {:#08x}", line.psn.value());
    let arg = line.arg;
    let Some(kind) = line.kind else {
        return format!("something this program does not know ({psn}, {arg})");
    };
    match kind {
        NoteKind::State => format!("entered {}", state_number(arg)),
        NoteKind::Timeout => {
            format!("local ACK timer expired at {psn}; {} left", retries(arg))
        }
        NoteKind::SeqNakReceived => format!(
            "the peer missed packets from {psn} on (sequence NAK); {} left",
            retries(arg)
        ),
        NoteKind::ImpliedNak => format!(
            "a READ or atomic response was lost at {psn}; {} left",
            retries(arg)
        ),
        NoteKind::RnrNakReceived => {
            format!("the peer had no receive posted at {psn} (RNR NAK, timer code {arg})")
        }
        NoteKind::FatalNakReceived => {
            format!("the peer refused {psn}: {}", nak(arg))
        }
        NoteKind::SeqNakSent => format!(
            "packets were missing from {psn} on: psn {:#08x} came instead (sequence NAK sent)",
            arg & 0xff_ffff
        ),
        NoteKind::RnrNakSent => {
            format!("no receive was posted at {psn} (RNR NAK sent, timer code {arg})")
        }
        NoteKind::FatalNakSent => format!("refused {psn} of the peer: {}", nak(arg)),
        NoteKind::ErrorCompletion => format!("error completion: {}", completion(arg)),
        NoteKind::Duplicate => {
            format!("answered a request seen before at {psn} (opcode {arg:#04x})")
        }
    }
}

/// Status and reason of an error completion's argument.
pub(crate) fn completion(arg: u32) -> String {
    let status = status_name(arg >> 16);
    match Reason::from_vendor_err(arg & 0xffff) {
        Some(reason) => format!("{status}: {}", reason.text()),
        None => status,
    }
}

/// A state by its verbs name; `None` stands for a queue pair that was destroyed.
pub(crate) fn state_name(state: Option<QpState>) -> &'static str {
    match state {
        Some(QpState::Reset) => "RESET",
        Some(QpState::Init) => "INIT",
        Some(QpState::Rtr) => "RTR",
        Some(QpState::Rts) => "RTS",
        Some(QpState::Sqd) => "SQD",
        Some(QpState::Sqe) => "SQE",
        Some(QpState::Err) => "ERR",
        None => "destroyed",
    }
}

fn state_number(number: u32) -> String {
    match QpState::from_verbs(number) {
        None => format!("state {number}"),
        known => state_name(known).to_owned(),
    }
}

fn retries(n: u32) -> String {
    match n {
        0 => "no retry".to_owned(),
        1 => "1 retry".to_owned(),
        n => format!("{n} retries"),
    }
}

fn nak(code: u32) -> String {
    match code {
        0 => "PSN sequence error".to_owned(),
        1 => "invalid request (operation, length or alignment)".to_owned(),
        2 => "remote access error (rkey, range, permission or protection domain)".to_owned(),
        3 => "remote operational error (its own memory or receive failed)".to_owned(),
        n => format!("NAK code {n}"),
    }
}

fn status_name(number: u32) -> String {
    let known = STATUSES.iter().find(|(status, _)| *status as u32 == number);
    known.map_or_else(
        || format!("status {number}"),
        |(_, name)| (*name).to_owned(),
    )
}

const STATUSES: [(WcStatus, &str); 16] = [
    (WcStatus::Success, "IBV_WC_SUCCESS"),
    (WcStatus::LocLenErr, "IBV_WC_LOC_LEN_ERR"),
    (WcStatus::LocQpOpErr, "IBV_WC_LOC_QP_OP_ERR"),
    (WcStatus::LocEecOpErr, "IBV_WC_LOC_EEC_OP_ERR"),
    (WcStatus::LocProtErr, "IBV_WC_LOC_PROT_ERR"),
    (WcStatus::WrFlushErr, "IBV_WC_WR_FLUSH_ERR"),
    (WcStatus::MwBindErr, "IBV_WC_MW_BIND_ERR"),
    (WcStatus::BadRespErr, "IBV_WC_BAD_RESP_ERR"),
    (WcStatus::LocAccessErr, "IBV_WC_LOC_ACCESS_ERR"),
    (WcStatus::RemInvReqErr, "IBV_WC_REM_INV_REQ_ERR"),
    (WcStatus::RemAccessErr, "IBV_WC_REM_ACCESS_ERR"),
    (WcStatus::RemOpErr, "IBV_WC_REM_OP_ERR"),
    (WcStatus::RetryExcErr, "IBV_WC_RETRY_EXC_ERR"),
    (WcStatus::RnrRetryExcErr, "IBV_WC_RNR_RETRY_EXC_ERR"),
    (WcStatus::FatalErr, "IBV_WC_FATAL_ERR"),
    (WcStatus::GeneralErr, "IBV_WC_GENERAL_ERR"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use rocebud_objects::Instant;
    use rocebud_wire::Psn;

    fn line(kind: NoteKind, psn: u32, arg: u32) -> NoteLine {
        NoteLine {
            number: 1,
            at: Instant(0),
            kind: Some(kind),
            psn: Psn::new(psn),
            arg,
        }
    }

    #[test]
    fn every_reason_is_told_with_its_status() {
        for reason in Reason::ALL {
            let arg = (reason.status() as u32) << 16 | *reason as u32;
            let told = completion(arg);
            assert!(told.starts_with("IBV_WC_"), "{told}");
            assert!(told.ends_with(reason.text()), "{told}");
        }
    }

    #[test]
    fn a_timeout_says_where_and_what_is_left() {
        let told = sentence(&line(NoteKind::Timeout, 0x3f, 6));
        assert_eq!(
            told,
            "local ACK timer expired at psn 0x00003f; 6 retries left"
        );
    }

    #[test]
    fn numbers_out_of_the_tables_are_told_as_numbers() {
        assert_eq!(completion(200 << 16), "status 200");
        assert_eq!(sentence(&line(NoteKind::State, 0, 99)), "entered state 99");
        let unknown = NoteLine {
            kind: None,
            ..line(NoteKind::State, 0, 0)
        };
        assert!(sentence(&unknown).contains("does not know"));
    }
}
