//! One run: the programs started, what they printed against what they have to show.

use super::cell::Cell;
use super::data::{Family, Refusal, RefusedClient};
use super::lab::{Counted, Stage};
use crate::netns::Host;
use crate::program::{Finished, Running, Spec};
use crate::status::wait_listening;
use crate::{Failure, Outcome, ensure, tree, wrong};

const PORT: u16 = 18515;
/// Longest run: `-a` on eight queue pairs through a relay, on a machine with other work.
const LIMIT_S: u64 = 120;
/// Words that no output of a good run has.
const BAD_WORDS: &[&str] = &[
    "error", "fail", "couldn't", "unable", "warning", "mismatch", "invalid", "rocebud", "bad ",
];
/// Lines that have such words although nothing is wrong.
const HARMLESS: &[&str] = &["BW peak won't be measured in this run"];

/// Runs the cell and judges it. Returns what was counted meanwhile.
///
/// # Errors
/// What was not as it should be.
pub fn run(cell: &Cell<'_>, stage: &mut Stage, full: bool) -> Result<Counted, Failure> {
    let [server, client] = specs(cell, stage, full)?;
    match cell.refusal() {
        Some(refusal) => refused(cell, refusal, stage, &server, &client)?,
        None => {
            let both = worked(cell, stage, &server, &client)?;
            let judged = report(cell, &both[1].output);
            let sane = both.iter().try_for_each(no_bad_words);
            if let Err(Failure::Wrong(why)) = judged.and(sane) {
                let [s, c] = both.map(|f| f.output);
                return wrong(format!("{why}\nserver:\n{s}\nclient:\n{c}"));
            }
        }
    }
    let counted = stage.counted()?;
    let drops: Vec<_> = counted
        .drops
        .iter()
        .filter(|(name, _)| !cell.explains(name))
        .collect();
    ensure(drops.is_empty(), || {
        format!("packets were dropped: {drops:?}")
    })?;
    Ok(counted)
}

fn specs(cell: &Cell<'_>, stage: &Stage, full: bool) -> Result<[Spec; 2], Failure> {
    let Some(program) = cell.program() else {
        return wrong("a cell without a program");
    };
    let gid = cell.value("gid").map_or("chosen", |v| v.name.as_str());
    let (option, pingpong) = match program.family {
        Family::Pingpong => ("-g", true),
        _ => ("-x", false),
    };
    let indices = match (gid, pingpong) {
        _ if cell.by_rdma_cm() => None,
        ("chosen", false) => None,
        ("chosen", true) => Some([0, 0]),
        (name, _) => Some(
            stage
                .gid(name)
                .ok_or_else(|| format!("no address {name}"))?,
        ),
    };
    let hosts = [stage.server(), stage.client()];
    let spec = |side: usize| {
        let mut args: Vec<String> = vec!["-d".into(), hosts[side].device()];
        args.extend(
            indices
                .iter()
                .flat_map(|i| [option.into(), i[side].to_string()]),
        );
        args.extend(
            cell.iterations()
                .iter()
                .flat_map(|n| ["-n".into(), n.to_string()]),
        );
        args.extend(cell.args(full).iter().map(|a| (*a).to_owned()));
        args.extend((!pingpong).then(|| "-F".into()));
        args.extend((side == 1).then(|| stage.server().v4.clone()));
        let words: Vec<&str> = args.iter().map(String::as_str).collect();
        hosts[side].rocebud(&program.name, &words).limit(LIMIT_S)
    };
    let both = [spec(0), spec(1)];
    match gid {
        "v6" | "link_local" if cell.by_rdma_cm() => by_inet6(stage, gid, both),
        _ => Ok(both),
    }
}

/// perftest of this release knows IPv4 addresses only: `--ipv6` chooses a GID, an IPv6 address is refused
/// (`perftest_refuses_by_rdma_cm`). So the address is changed between perftest and librdmacm.
fn by_inet6(stage: &Stage, gid: &str, both: [Spec; 2]) -> Result<[Spec; 2], Failure> {
    let more = ["-shared", "-fPIC"];
    let preload = tree::c_program_with("cm_inet6", "cm_inet6.so", "cc", &more)?;
    let address = match gid {
        "v6" => stage.server().v6.clone(),
        _ => stage.server().link_local()?,
    };
    Ok(both.map(|spec| spec.env("LD_PRELOAD", &preload).env("CM_INET6", &address)))
}

/// Waits until the server can be asked.
fn wait_ready(cell: &Cell<'_>, server: &mut Running, host: &Host) -> Outcome {
    if cell.by_rdma_cm() {
        return wait_listening(server, host, &PORT.to_string());
    }
    server.wait_listening(host, PORT)
}

/// A race of perftest 4.5 with rdma_cm: its server listens for the second connection only after the exchange
/// over the first. A client that asks sooner is refused (REJ 8), tries again with identifiers that it has freed,
/// and dies of it; over Linux's own rdma_cm, too (see tools/interop/matrix/known.toml).
const ASKED_TOO_SOON: &str = "RDMA_CM_EVENT_REJECTED; error: 8.";
/// Runs that may end so, in a row.
const TOO_SOON_MAX: u32 = 5;

/// Both sides, which must end with 0; the server's comes first.
fn worked(
    cell: &Cell<'_>,
    stage: &Stage,
    server: &Spec,
    client: &Spec,
) -> Result<[Finished; 2], Failure> {
    let mut too_soon = 0;
    loop {
        match worked_once(cell, stage, server, client) {
            Err(Failure::Wrong(why))
                if cell.by_rdma_cm() && too_soon < TOO_SOON_MAX && why.contains(ASKED_TOO_SOON) =>
            {
                too_soon += 1;
            }
            ended => return ended,
        }
    }
}

fn worked_once(
    cell: &Cell<'_>,
    stage: &Stage,
    server: &Spec,
    client: &Spec,
) -> Result<[Finished; 2], Failure> {
    let mut s = server.start()?;
    wait_ready(cell, &mut s, stage.server())?;
    let client = client.run().and_then(Finished::well);
    if client.is_err() {
        std::thread::sleep(std::time::Duration::from_millis(300)); // for the server's last words
    }
    let said = s.output();
    let c = client.map_err(|e| e.and(&format!("server so far:\n{said}")))?;
    let server = s.finish().and_then(Finished::well);
    let s = server.map_err(|e| e.and(&format!("client:\n{}", c.output)))?;
    Ok([s, c])
}

/// Both sides must fail, the server in these words.
fn refused(
    cell: &Cell<'_>,
    refusal: &Refusal,
    stage: &Stage,
    server: &Spec,
    client: &Spec,
) -> Outcome {
    let mut s = server.start()?;
    let _ = wait_ready(cell, &mut s, stage.server()); // or it ended before, and has said why
    let mut c = client.start()?;
    let says = &refusal.says;
    if refusal.client == RefusedClient::Crashes {
        let ended = c.finish()?;
        ensure(ended.code != Some(0), || {
            format!("the client succeeds:\n{}", ended.output)
        })?;
        let said = s.wait_for(says);
        s.kill();
        return said.map(drop);
    }
    let server = s.finish()?;
    ensure(server.code != Some(0) && server.signal.is_none(), || {
        format!(
            "the server ended with {:?} {:?}",
            server.code, server.signal
        )
    })?;
    ensure(server.output.contains(says), || {
        format!("the server does not say '{says}':\n{}", server.output)
    })?;
    if refusal.client == RefusedClient::Hangs {
        c.kill();
        return Ok(());
    }
    let client = c.finish()?;
    ensure(client.code != Some(0) && client.signal.is_none(), || {
        let how = (client.code, client.signal);
        format!("the client ended with {how:?}:\n{}", client.output)
    })
}

fn report(cell: &Cell<'_>, said: &str) -> Outcome {
    match cell.program().map(|p| p.family) {
        Some(Family::Pingpong) => pingpong_report(cell, said),
        _ => perftest_report(cell, said),
    }
}

/// `8192000 bytes in 0.01 seconds …` (both directions) and `1000 iters in …`.
fn pingpong_report(cell: &Cell<'_>, said: &str) -> Outcome {
    let iterations = u64::from(cell.iterations().unwrap_or(0));
    let bytes = cell.sizes().first().copied().unwrap_or(0) * iterations * 2;
    for line in [
        format!("{bytes} bytes in "),
        format!("{iterations} iters in "),
    ] {
        ensure(said.lines().any(|l| l.starts_with(&line)), || {
            format!("no line '{line}…'")
        })?;
    }
    Ok(())
}

/// One line for every size, with the right number of messages and a result above zero; the path MTU.
fn perftest_report(cell: &Cell<'_>, said: &str) -> Outcome {
    let mtu = cell.path_mtu().unwrap_or(0);
    let line = format!(": {mtu}[B]");
    ensure(
        said.lines()
            .any(|l| l.starts_with(" Mtu") && l.ends_with(&line)),
        || format!("the path MTU is not {mtu}"),
    )?;
    let rows: Vec<Vec<f64>> = said.lines().filter_map(row).collect();
    let sizes: Vec<f64> = rows.iter().map(|r| r[0]).collect();
    #[expect(clippy::cast_precision_loss, reason = "sizes of at most 8 MiB")]
    let wanted: Vec<f64> = cell.sizes().iter().map(|s| *s as f64).collect();
    ensure(sizes == wanted, || {
        format!("reported sizes {sizes:?}, not {wanted:?}")
    })?;
    let messages = cell.iterations().map(|n| f64::from(n * cell.queue_pairs()));
    for row in &rows {
        ensure(messages.is_none_or(|n| row[1] == n) && row[1] > 0.0, || {
            format!("{} bytes: {} messages, not {messages:?}", row[0], row[1])
        })?;
        // bandwidth: peak (0 when not measured), average, rate; latency: all of them times. A few tiny
        // messages on a busy machine round to 0.00 MB/s.
        ensure(row[3] > 0.0 || row[0] < 1024.0, || {
            format!("{} bytes: no result", row[0])
        })?;
    }
    Ok(())
}

/// A line of numbers, at least size, messages and two results.
fn row(line: &str) -> Option<Vec<f64>> {
    // What perftest says on standard error of how it measured the processor's clock, in the midst of a line.
    let line = line.split("Correlation coefficient").next()?;
    let numbers: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
    numbers.ok().filter(|n| n.len() >= 4)
}

fn no_bad_words(ran: &Finished) -> Outcome {
    match ran.output.lines().find(|line| complains(line)) {
        Some(line) => wrong(format!("it says: {line}")),
        None => Ok(()),
    }
}

/// Has the line a word that no good run has, at the start of a word? `PSN 0x904bad` has none.
fn complains(line: &str) -> bool {
    let lower = line.to_lowercase();
    let starts_a_word = |at: usize| {
        let before = lower.get(..at).and_then(|s| s.chars().next_back());
        !before.is_some_and(char::is_alphanumeric)
    };
    let bad = BAD_WORDS
        .iter()
        .any(|word| lower.match_indices(word).any(|(at, _)| starts_a_word(at)));
    bad && !HARMLESS.iter().any(|h| line.contains(h))
}

#[cfg(test)]
mod tests {
    use super::{complains, row};

    #[test]
    fn words_of_complaint_are_told_from_numbers() {
        for line in [
            " Completion with error at client",
            " Failed status 12: wr_id 0",
            "bad wc status 12",
            "Couldn't connect",
        ] {
            assert!(complains(line), "{line}");
        }
        for line in [
            " local address: LID 0000 QPN 0x0bad PSN 0x904bad RKey 0xc6c4049b",
            " remote address: LID 0000 QPN 0xcc0bad PSN 0xc5d71a OUT 0x80",
            " GID: 11:186:173:00",
        ] {
            assert!(!complains(line), "{line}");
        }
    }

    #[test]
    fn rows_of_results_are_told_from_other_lines() {
        let bandwidth = " 65536      5000             3342.25            3196.39\t\t   0.051142";
        assert_eq!(
            row(bandwidth).map(|r| (r[0], r[1])),
            Some((65536.0, 5000.0))
        );
        let duration = " 2             20324            49.21          20322.34";
        assert_eq!(row(duration).map(|r| r[3]), Some(20322.34));
        let remarked = " 64         10               15.10              3.05   \t\t   0.049923\
            Correlation coefficient r^2: 0.857727 < 0.9";
        assert_eq!(row(remarked).map(|r| r[3]), Some(3.05));
        assert!(row(" #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]").is_none());
        assert!(row(" GID: 00:00:00:00").is_none());
    }
}
