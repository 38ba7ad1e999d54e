//! The command line.

use std::ffi::OsString;

use clap::{Parser, Subcommand};

/// RoCE v2 in userspace: run unmodified verbs programs without RDMA in the kernel.
#[derive(Debug, Parser)]
#[command(name = "rocebud", version, arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "Examples:
  rocebud devices                        what verbs programs will see
  rocebud run -- ib_write_bw             wait for a peer
  rocebud run -- ib_write_bw 10.0.0.1    measure against it
  rocebud status                         who runs, what was counted, what failed
  rocebud interop --target rxe           test against Linux's soft-RoCE (root)

Environment (of the programs too; a value that means nothing is named and
counts as not set):
  ROCEBUD_SOCKET      control socket of the daemon to use: a path, or @NAME for
                      an abstract one
  ROCEBUD_DAEMON      program that is started as daemon when none runs
  ROCEBUD_DAEMON_LOG  file to which such a daemon adds its lines (else they are
                      lost)
  ROCEBUD_RCVBUF      bytes of a receive buffer, 16384 at least, read by a
                      daemon when it starts
  ROCEBUD_RING        off: no rings for small packets, read by a daemon when it
                      starts
  ROCEBUD_REAL        off: leave out the devices of real RNICs; a path: the
                      libibverbs.so.1 that knows them
  ROCEBUD_LOG         off, error, warn, info or debug";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Daemon(DaemonArgs),
    Devices(DevicesArgs),
    Status(StatusArgs),
    Interop(InteropArgs),
}

/// Test against kernel rxe, RNICs, another machine or rocebud itself
///
/// Starts `rocebud-interop`, which lies beside this program; its help is that of
/// `rocebud interop --help`.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, disable_help_flag = true)]
pub(crate) struct InteropArgs {
    /// What `rocebud-interop` is given
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENTS"
    )]
    pub(crate) arguments: Vec<OsString>,
}

/// Run a verbs program on rocebud's devices
///
/// Puts rocebud's libibverbs.so.1 and librdmacm.so.1 first in LD_LIBRARY_PATH and
/// becomes PROGRAM, so signals and the exit status are the program's own. A
/// daemon is started if none runs. Programs that look into /sys/class/infiniband
/// and /dev/infiniband find the devices there too, through a preloaded shim or,
/// with --ns, in a mount namespace.
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "Examples:
  rocebud run -- ibv_devinfo -v
  rocebud run -- ib_send_lat -d rb_eth0 10.0.0.1
  rocebud run --ns -- ucx_info -d        programs that the shim does not reach

Exit status: the program's; 127 if it is not found, 126 if it cannot be run, 1
for other errors."
)]
pub(crate) struct RunArgs {
    /// Show the sysfs tree in a mount namespace instead of by the shim:
    /// reaches static programs and tools too; an ordinary user needs user
    /// namespaces for it
    #[arg(long, verbatim_doc_comment)]
    pub(crate) ns: bool,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

/// Run the daemon in the foreground, until it is stopped
///
/// Programs start one by themselves; a system's own (as root) serves all users,
/// has larger receive buffers and keeps running.
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    next_line_help = true,
    after_help = "Examples:
  rocebud daemon
      as root: for all users, at /run/rocebud/control
  rocebud daemon --socket /run/rb.sock
      for programs with ROCEBUD_SOCKET=/run/rb.sock
  rocebud daemon --socket @test
      abstract: in this network namespace only"
)]
pub(crate) struct DaemonArgs {
    /// Where to listen: a path, or @NAME for an abstract socket [default:
    /// /run/rocebud/control for root, else the user's abstract socket]
    #[arg(long, verbatim_doc_comment, value_name = "PATH|@NAME")]
    pub(crate) socket: Option<OsString>,
    /// Leave some seconds after the last program (how programs start it)
    #[arg(long)]
    pub(crate) auto: bool,
    /// Descriptor on which the starter waits for word
    #[arg(long, value_name = "FD", hide = true)]
    pub(crate) status_fd: Option<i32>,
}

/// List the devices, their state and their GID tables.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rocebud devices
  rocebud devices --json | jq '.[0].gids'

A port is ACTIVE when its interface is up with a carrier and has an address.
ACTIVE_MTU is the largest path MTU that fits into the interface's MTU. Give the
INDEX of a GID to programs that ask for one (-x of perftest, -g of
ibv_rc_pingpong). An index stays with its address, so for an interface that has
just come up this waits until IPv6 has tried its addresses: at most 2.5 s.")]
pub(crate) struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show daemon, processes, queue pairs and counters, and what went wrong
///
/// Processes that ended a short time ago are listed too, with the reason of each
/// queue pair's first error completion.
#[derive(Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "Examples:
  rocebud status
  rocebud status --qp 0x12003            one queue pair and its last events
  rocebud status --json

A process has queue pair numbers in blocks of 4096. When it ends they rest for
10 s (time-wait), so that late packets meet nobody; the next process has others.
Counters have the names of Linux's hw_counters; those that are 0 are left out.
drop_… count packets that were thrown away, with the reason in the name.
PEER is the queue pair and the GID at the other end. A queue pair without
trouble last entered a state; else LAST EVENT says which packet (PSN) was lost,
refused or repeated. One that was destroyed shows its last trouble, if any."
)]
pub(crate) struct StatusArgs {
    /// Only this queue pair (decimal or 0x…), with its last events
    #[arg(long, value_name = "QPN", value_parser = parse_qpn)]
    pub(crate) qp: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_qpn(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    match number {
        Ok(qpn) if qpn <= 0xff_ffff => Ok(qpn),
        _ => Err("a queue pair number is 0 to 0xffffff".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn options_of_the_program_are_left_to_it() {
        let args = Args::try_parse_from(["rocebud", "run", "--", "ib_write_bw", "--ns", "-a"]);
        let Ok(Args {
            command: Command::Run(run),
        }) = args
        else {
            panic!("not a run: {args:?}");
        };
        assert!(!run.ns);
        assert_eq!(run.program, ["ib_write_bw", "--ns", "-a"]);
        let args = Args::try_parse_from(["rocebud", "run", "ib_write_bw", "-a"]);
        assert!(args.is_ok(), "{args:?}");
    }

    #[test]
    fn everything_behind_interop_is_left_to_it() {
        let args = Args::try_parse_from(["rocebud", "interop", "--target", "rxe", "--help"]);
        let Ok(Args {
            command: Command::Interop(interop),
        }) = args
        else {
            panic!("not an interop: {args:?}");
        };
        assert_eq!(interop.arguments, ["--target", "rxe", "--help"]);
    }

    #[test]
    fn queue_pair_numbers_are_read_in_both_notations_and_bounded() {
        assert_eq!(parse_qpn("0x12003"), Ok(0x12003));
        assert_eq!(parse_qpn("17"), Ok(17));
        assert!(parse_qpn("0x1000000").is_err());
        assert!(parse_qpn("qp").is_err());
    }

    /// Long and short help of a command and of all below it.
    fn helps(command: &mut clap::Command, all: &mut Vec<String>) {
        all.push(command.render_help().to_string());
        all.push(command.render_long_help().to_string());
        command
            .get_subcommands_mut()
            .for_each(|below| helps(below, all));
    }

    #[test]
    fn every_help_fits_80_columns() {
        let mut command = Args::command();
        command.build();
        let mut all = Vec::new();
        helps(&mut command, &mut all);
        assert!(all.len() > 6, "{} helps", all.len());
        let wide: Vec<&str> = all
            .iter()
            .flat_map(|help| help.lines())
            .filter(|line| line.chars().count() > 80)
            .collect();
        assert!(wide.is_empty(), "{}", wide.join("\n"));
    }
}
