//! `rocebud interop`.

#![deny(unsafe_code)]

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use rocebud_interop::differ;
use rocebud_interop::error::{Doing, Error, Result, fail};
use rocebud_interop::golden::Shelf;
use rocebud_interop::peer::{self, Options, Peer, agent::Address, image};
use rocebud_interop::run::{self, Order};
use rocebud_interop::target::Target;
use rocebud_interop::{cleanup, matrix, netns};

mod args;

use args::{Args, Command, GuestArgs, Listen, TestArgs};

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.command {
        Some(Command::Peer(guest)) => serve(&options(guest)),
        Some(Command::Guest {
            namespace,
            limit,
            command,
        }) => guest(&namespace, limit, &command),
        Some(Command::Agent { listen, from }) => agent(listen, from.map(|a| a.to_string())),
        None => test(args.test),
    };
    cleanup::stop_if_ending();
    cleanup::all();
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("rocebud interop: {error}");
            ExitCode::from(2)
        }
    }
}

fn options(guest: GuestArgs) -> Options {
    Options {
        mtu: guest.mtu,
        accel: guest.accel,
        boot_s: guest.boot,
        inside: false,
    }
}

fn test(args: TestArgs) -> Result<u8> {
    let Some(target) = args.target.clone() else {
        return fail("--target is missing");
    };
    acceptable(&args, &target)?;
    cleanup::sweep();
    netns::sweep();
    cleanup::on_signals()?;
    let matrix = match &args.matrix {
        Some(path) => matrix::read(path).doing(|| format!("--matrix {}", path.display()))?,
        None if args.differential || args.golden.is_some() => matrix::GOLDEN.to_owned(),
        None => matrix::BUILT_IN.to_owned(),
    };
    let golden = args.golden.clone().map(|directory| Shelf {
        command: command(&args, &target, &directory),
        directory,
    });
    let alone = alone(&args, &target);
    let order = Order {
        command: as_typed(),
        lanes: if alone { 1 } else { lanes(args.lanes) },
        target,
        golden,
        matrix,
        short: args.short,
        only: args.only.split_whitespace().map(str::to_owned).collect(),
        options: options(args.guest),
        namespace: args.namespace,
        addresses: args.addresses,
        captures: args.captures,
        capture_all: args.capture_all,
    };
    if args.differential {
        let differences = differ::run(&order)?;
        print!("{}", differences.report(order.target.name()));
        let right = differences.news() == 0 && differences.skipped().is_empty();
        return Ok(u8::from(!right));
    }
    let report = run::run(&order)?;
    print!("{}", report.text());
    for (option, path, text) in [
        ("--json", args.json, report.json()),
        ("--html", args.html, report.html()),
    ] {
        if let Some(path) = path {
            std::fs::write(&path, text).doing(|| format!("{option} {}", path.display()))?;
        }
    }
    match &report.trouble {
        Some(why) => fail(format!("not all could be run: {why}")),
        None => Ok(u8::from(report.sums().failed > 0)),
    }
}

/// What would only be noticed after the work is noticed here.
fn acceptable(args: &TestArgs, target: &Target) -> Result<()> {
    let own_network = own_network(target);
    if own_network && !args.addresses.is_empty() {
        return fail(format!(
            "--addresses is for verbs:DEVICE and host:ADDRESS; {} brings its own network",
            target.name()
        ));
    }
    if args.lanes.is_some() && alone(args, target) {
        return fail(
            "--lanes is for the targets rxe and rocebud, without --golden or --differential",
        );
    }
    if args.namespace.is_some() && !matches!(target, Target::Verbs(_)) {
        return fail("--namespace is for verbs:DEVICE: where rocebud runs beside the device");
    }
    if own_network || args.namespace.is_some() {
        root("the target's network namespaces")?;
    }
    for (option, path) in [("--json", &args.json), ("--html", &args.html)] {
        if let Some(path) = path {
            writable(path).doing(|| format!("{option} {}", path.display()))?;
        }
    }
    for (option, path) in [("--captures", &args.captures), ("--golden", &args.golden)] {
        if let Some(path) = path {
            let probe = path.join(format!(".rocebud-{}", std::process::id()));
            std::fs::create_dir_all(path)
                .and_then(|()| writable(&probe))
                .doing(|| format!("{option} {}", path.display()))?;
        }
    }
    Ok(())
}

/// Is there one bench at most?
fn alone(args: &TestArgs, target: &Target) -> bool {
    args.differential || args.golden.is_some() || !matches!(target, Target::Rocebud | Target::Rxe)
}

/// Does the target bring networks of its own, as many as are asked for?
fn own_network(target: &Target) -> bool {
    matches!(target, Target::Rocebud | Target::Rxe | Target::Inside)
}

/// A bench for each two cores would leave one idle half of the time: two programs wait for each other.
fn lanes(asked: Option<u8>) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    asked.map_or_else(|| cores.min(2), usize::from)
}

fn root(what: &str) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    fail(format!("{what} can be made by root only: use sudo"))
}

/// Leaves the file as it is, or not there as it was.
fn writable(path: &Path) -> std::io::Result<()> {
    let before = path.exists();
    OpenOptions::new().append(true).create(true).open(path)?;
    if before {
        Ok(())
    } else {
        std::fs::remove_file(path)
    }
}

/// The command line, as it can be typed again.
fn as_typed() -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+%@".contains(c);
    let words = std::env::args().skip(1).map(|word| {
        if !word.is_empty() && word.chars().all(plain) {
            word
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    });
    let words: Vec<String> = ["rocebud".to_owned(), "interop".to_owned()]
        .into_iter()
        .chain(words)
        .collect();
    words.join(" ")
}

/// What makes the same golden captures again, up to the choice of a cell.
fn command(args: &TestArgs, target: &Target, directory: &Path) -> String {
    let mut text = format!("rocebud interop --target {}", target.name());
    if let Some(matrix) = &args.matrix {
        text.push_str(&format!(" --matrix {}", matrix.display()));
    }
    text + &format!(" --golden {}", directory.display())
}

/// Becomes the agent. Under `rocebud run` its devices are rocebud's, else those of the machine's own libibverbs.
fn agent(listen: Listen, from: Option<String>) -> Result<u8> {
    use std::os::unix::process::CommandExt;
    let program = image::agent()?;
    let devices = if std::env::var_os("ROCEBUD_DAEMON").is_some() {
        "rocebud's devices"
    } else {
        "the devices of this machine's own libibverbs"
    };
    let Listen { address, port } = listen;
    let address = address.map_or_else(|| "*".to_owned(), |a| a.to_string());
    eprintln!("agent: tests {devices}; answers on {address} port {port} until it is stopped");
    eprintln!("agent: {}", who_may_do_what(&listen, from.as_deref()));
    let mut command = std::process::Command::new(program);
    command
        .args(["serve", &address, &port.to_string()])
        .args(from);
    Err(Error(format!("starting the agent: {}", command.exec())))
}

fn who_may_do_what(listen: &Listen, from: Option<&str>) -> String {
    let uid = rustix::process::geteuid();
    let me = if uid.is_root() {
        "root".to_owned()
    } else {
        format!("user {}", uid.as_raw())
    };
    let who = match (from, listen.address) {
        (Some(from), _) => format!("who connects from {from}"),
        (None, Some(ip)) if ip.is_loopback() => "every user of this machine".into(),
        (None, Some(ip)) => format!("WARNING: whoever reaches {ip}"),
        (None, None) => "WARNING: whoever reaches any address of this machine".into(),
    };
    let remedy = if from.is_none() {
        " Use a network of your own, or --from ADDRESS."
    } else {
        ""
    };
    format!(
        "{who} may run any command and write any file here as {me}, unasked and in clear text.{remedy}"
    )
}

fn serve(options: &Options) -> Result<u8> {
    root("the guest's network namespace")?;
    cleanup::sweep();
    netns::sweep();
    cleanup::on_signals()?;
    let image = image::image(&image::agent()?)?;
    let mut peer = Peer::boot(&image, options)?;
    let (ns, pid) = (peer.ns.name().to_owned(), peer.pid());
    let rocebud = own_path();
    println!(
        "ready: Linux {} ({}), qemu is process {pid}",
        peer.version, peer.how
    );
    println!(
        "namespace {ns}: ours {} {}, rxe0 {} {}",
        peer::OURS.0,
        peer::OURS.1,
        peer::THEIRS.0,
        peer::THEIRS.1
    );
    println!("there:  {rocebud} interop guest {ns} -- ib_write_bw -d rxe0");
    println!(
        "here:   ip netns exec {ns} {rocebud} run -- ib_write_bw {}",
        peer::THEIRS.0
    );
    println!("stop:   kill {}", std::process::id());
    while peer.alive() {
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    cleanup::stop_if_ending();
    fail("the guest ended by itself")
}

/// `rocebud`, as it can be called from anywhere.
fn own_path() -> String {
    let beside = || Some(std::env::current_exe().ok()?.with_file_name("rocebud"));
    let path: Option<PathBuf> = beside().filter(|p| p.exists());
    path.map_or_else(|| "rocebud".into(), |p| p.display().to_string())
}

fn guest(namespace: &str, limit: u64, command: &[String]) -> Result<u8> {
    root("the way into the guest's network namespace")?;
    let agent = Address {
        namespace: Some(namespace.to_owned()),
        socket: SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 7000)),
    };
    let ended = agent.run(&command.join(" "), limit)?;
    print!("{}", ended.output);
    Ok(u8::try_from(ended.code).unwrap_or(1))
}
