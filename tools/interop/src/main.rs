//! `rocebud interop`.

#![deny(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rocebud_interop::error::{Result, fail};
use rocebud_interop::peer::{self, Options, Peer, agent::Address, image};
use rocebud_interop::{cleanup, netns};

/// Test RoCE v2 against kernel rxe, real RNICs, another machine or rocebud itself.
#[derive(Debug, Parser)]
#[command(name = "rocebud interop", version, arg_required_else_help = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Boot the kernel peer and keep it until this command is stopped (Ctrl-C, or kill).
    Peer {
        /// MTU of the wire; 4200 or more gives path MTU 4096
        #[arg(long, default_value_t = 4200)]
        mtu: u32,
        /// kvm or tcg [default: kvm where it works]
        #[arg(long)]
        accel: Option<String>,
        /// Seconds until it must be ready
        #[arg(long, default_value_t = 180)]
        boot: u64,
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
    let done = match Args::parse().command {
        Command::Peer { mtu, accel, boot } => serve(&Options {
            mtu,
            accel,
            boot_s: boot,
        }),
        Command::Guest {
            namespace,
            limit,
            command,
        } => guest(&namespace, limit, &command),
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
