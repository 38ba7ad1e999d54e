//! `rocebud interop`.

#![deny(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rocebud_interop::differ;
use rocebud_interop::error::{Doing, Error, Result, fail};
use rocebud_interop::golden::Shelf;
use rocebud_interop::peer::{self, Options, Peer, agent::Address, image};
use rocebud_interop::run::{self, Order};
use rocebud_interop::target::Target;
use rocebud_interop::{cleanup, matrix, netns};

/// Test RoCE v2 against kernel rxe, real RNICs, another machine or rocebud itself.
#[derive(Debug, Parser)]
#[command(
    name = "rocebud interop",
    version,
    arg_required_else_help = true,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  rocebud interop --target rxe --html result.html     Linux's soft-RoCE, in a guest (root)
  rocebud interop --target rocebud --only 'rc read'   ourselves, cells with these words
  rocebud interop --target inside                     rxe through its own libibverbs, rocebud beside it, in one guest
  rocebud interop --target verbs:mlx5_0 --addresses 192.0.2.1,192.0.2.2
  rocebud interop peer                                boot the guest and keep it

Exit status: 0 all cells right (or explained), 1 a cell failed, 2 could not be run."
)]
struct Args {
    #[command(flatten)]
    test: TestArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Args)]
struct TestArgs {
    /// rocebud, rxe, inside, verbs:DEVICE or host:ADDRESS[:PORT]
    #[arg(long, required = true)]
    target: Option<Target>,
    /// Only the cells of the short form
    #[arg(long)]
    short: bool,
    /// Only cells with all these words in group or name (and without !WORD)
    #[arg(long, value_name = "WORDS", default_value = "")]
    only: String,
    /// A matrix instead of the one that comes along
    #[arg(long, value_name = "FILE")]
    matrix: Option<PathBuf>,
    /// Write the result as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the result as a page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write a capture of each cell that is not right
    #[arg(long, value_name = "DIRECTORY")]
    captures: Option<PathBuf>,
    /// ... and of those that are
    #[arg(long, requires = "captures")]
    capture_all: bool,
    /// Play the small matrix, keep the RoCE frames of each cell that is right, and in captures.tsv how it was made
    #[arg(long, value_name = "DIRECTORY")]
    golden: Option<PathBuf>,
    /// Play the small matrix against rocebud too; show which packets differ, and why those that may
    #[arg(long)]
    differential: bool,
    /// Ours and the device's, for verbs:DEVICE; four for IPv4 and IPv6
    #[arg(long, value_delimiter = ',', value_name = "OURS,THEIRS")]
    addresses: Vec<String>,
    /// Network namespace in which rocebud runs, for verbs:DEVICE
    #[arg(long)]
    namespace: Option<String>,
    /// MTU of the wire; 4200 or more gives path MTU 4096
    #[arg(long, default_value_t = 4200)]
    mtu: u32,
    /// kvm or tcg [default: kvm where it works]
    #[arg(long, value_parser = ["kvm", "tcg"])]
    accel: Option<String>,
    /// Seconds until the guest must be ready
    #[arg(long, default_value_t = 180)]
    boot: u64,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Boot the kernel peer and keep it until this command is stopped (Ctrl-C, or kill).
    Peer {
        /// MTU of the wire; 4200 or more gives path MTU 4096
        #[arg(long, default_value_t = 4200)]
        mtu: u32,
        /// kvm or tcg [default: kvm where it works]
        #[arg(long, value_parser = ["kvm", "tcg"])]
        accel: Option<String>,
        /// Seconds until it must be ready
        #[arg(long, default_value_t = 180)]
        boot: u64,
    },
    /// Serve as the other machine of `--target host:…`, until stopped.
    Agent {
        /// TCP port. Whoever reaches it may run commands here: use a test network
        #[arg(long, default_value_t = 7471)]
        port: u16,
    },
    /// Run a command in the guest of `rocebud interop peer`.
    Guest {
        /// The namespace that `peer` named
        namespace: String,
        /// Seconds it may take
        #[arg(long, default_value_t = 120)]
        limit: u64,
        /// A shell command
        #[arg(required = true, trailing_var_arg = true)]
        command: Vec<String>,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.command {
        Some(Command::Peer { mtu, accel, boot }) => serve(&Options {
            mtu,
            accel,
            boot_s: boot,
            inside: false,
        }),
        Some(Command::Guest {
            namespace,
            limit,
            command,
        }) => guest(&namespace, limit, &command),
        Some(Command::Agent { port }) => agent(port),
        None => test(args.test),
    };
    cleanup::all();
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("rocebud interop: {error}");
            ExitCode::from(2)
        }
    }
}

fn test(args: TestArgs) -> Result<u8> {
    let Some(target) = args.target.clone() else {
        return fail("--target is missing");
    };
    netns::sweep();
    cleanup::on_signals()?;
    let matrix = match &args.matrix {
        Some(path) => std::fs::read_to_string(path).doing(|| path.display().to_string())?,
        None if args.differential || args.golden.is_some() => matrix::GOLDEN.to_owned(),
        None => matrix::BUILT_IN.to_owned(),
    };
    let golden = args.golden.clone().map(|directory| Shelf {
        command: command(&args, &target, &directory),
        directory,
    });
    let order = Order {
        target,
        golden,
        matrix,
        short: args.short,
        only: args.only.split_whitespace().map(str::to_owned).collect(),
        options: Options {
            mtu: args.mtu,
            accel: args.accel,
            boot_s: args.boot,
            inside: false,
        },
        namespace: args.namespace,
        addresses: args.addresses,
        captures: args.captures,
        capture_all: args.capture_all,
    };
    if args.differential {
        let differences = differ::run(&order)?;
        print!("{}", differences.report(order.target.name()));
        return Ok(u8::from(differences.news() > 0));
    }
    let report = run::run(&order)?;
    print!("{}", report.text());
    for (path, text) in [(args.json, report.json()), (args.html, report.html())] {
        if let Some(path) = path {
            std::fs::write(&path, text).doing(|| path.display().to_string())?;
        }
    }
    Ok(u8::from(report.sums().failed > 0))
}

/// What makes the same golden captures again, up to the choice of a cell.
fn command(args: &TestArgs, target: &Target, directory: &Path) -> String {
    let mut text = format!("rocebud interop --target {}", target.name());
    if let Some(matrix) = &args.matrix {
        text.push_str(&format!(" --matrix {}", matrix.display()));
    }
    text + &format!(" --golden {}", directory.display())
}

/// Becomes the agent, on rocebud's devices if there is a build of it, else on the machine's own.
fn agent(port: u16) -> Result<u8> {
    use std::os::unix::process::CommandExt;
    let program = image::agent()?;
    let error = std::process::Command::new(program)
        .args(["serve", &port.to_string()])
        .exec();
    Err(Error(format!("starting the agent: {error}")))
}

fn serve(options: &Options) -> Result<u8> {
    netns::sweep();
    cleanup::on_signals()?;
    let image = image::image(&image::agent()?)?;
    let mut peer = Peer::boot(&image, options)?;
    let (ns, pid) = (peer.ns.name().to_owned(), peer.pid());
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
    println!(
        "here:   ip netns exec {ns} rocebud run -- ib_write_bw {}",
        peer::THEIRS.0
    );
    println!("there:  rocebud interop guest {ns} -- ib_write_bw -d rxe0");
    println!("stop:   kill {}", std::process::id());
    while peer.alive() {
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    fail("the guest ended by itself")
}

fn guest(namespace: &str, limit: u64, command: &[String]) -> Result<u8> {
    let agent = Address {
        namespace: Some(namespace.to_owned()),
        socket: std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 7000)),
    };
    let ended = agent.run(&command.join(" "), limit)?;
    print!("{}", ended.output);
    Ok(u8::try_from(ended.code).unwrap_or(1))
}
