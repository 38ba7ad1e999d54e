//! What `rocebud interop` can be told.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Parser, Subcommand};
use rocebud_interop::target::Target;

/// The agent's, where `--listen` and `host:` name none.
pub(crate) const PORT: u16 = 7471;

/// Test RoCE v2 against kernel rxe, real RNICs, another machine or rocebud itself.
#[derive(Debug, Parser)]
#[command(
    name = "rocebud interop",
    bin_name = "rocebud interop",
    version,
    arg_required_else_help = true,
    args_conflicts_with_subcommands = true,
    next_line_help = true,
    after_help = "Examples:
  rocebud interop --target rxe --html result.html
      Linux's soft-RoCE, in a guest (root)
  rocebud interop --target rocebud --only 'rc read'
      ourselves, cells with these words
  rocebud interop --target inside
      rxe through its own libibverbs, rocebud beside it, in one guest
  rocebud interop --target verbs:mlx5_0 --addresses 192.0.2.1,192.0.2.2
  rocebud interop --target host:192.0.2.2
      the machine on which `rocebud interop agent` runs
  rocebud interop peer
      boot the guest and keep it

Exit status: 0 all cells right (or explained), 1 a cell failed, 2 could not be
run, 130 interrupted."
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) test: TestArgs,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TestArgs {
    /// rocebud, rxe, inside, verbs:DEVICE or host:ADDRESS[:PORT]
    #[arg(long, required = true)]
    pub(crate) target: Option<Target>,
    /// Only the cells of the short form
    #[arg(long)]
    pub(crate) short: bool,
    /// Only cells with all these words in group or name (and without !WORD)
    #[arg(
        long,
        value_name = "WORDS",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) only: String,
    /// A matrix instead of the one that comes along
    #[arg(long, value_name = "FILE")]
    pub(crate) matrix: Option<PathBuf>,
    /// Benches side by side, each with its own guest and wire, for rxe and
    /// rocebud [default: 2 where there are two cores]
    #[arg(long, verbatim_doc_comment, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(crate) lanes: Option<u8>,
    /// Write the result as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the result as a page
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write a capture of each cell that is not right
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) captures: Option<PathBuf>,
    /// ... and of those that are
    #[arg(long, requires = "captures")]
    pub(crate) capture_all: bool,
    /// Play the small matrix, keep the RoCE frames of each cell that is
    /// right, and in captures.tsv how it was made
    #[arg(long, verbatim_doc_comment, value_name = "DIRECTORY")]
    pub(crate) golden: Option<PathBuf>,
    /// Play the small matrix against rocebud too; show which packets differ,
    /// and why those that may
    #[arg(long, verbatim_doc_comment, conflicts_with_all = ["json", "html", "captures", "golden"])]
    pub(crate) differential: bool,
    /// The two ends' addresses on the tested network, rocebud's first: for
    /// verbs:DEVICE, and for host:… where the agent is reached over another
    /// network; four for IPv4 and IPv6
    #[arg(
        long,
        verbatim_doc_comment,
        value_delimiter = ',',
        value_name = "OURS,THEIRS"
    )]
    pub(crate) addresses: Vec<IpAddr>,
    /// Network namespace in which rocebud runs, for verbs:DEVICE
    #[arg(long)]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) guest: GuestArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GuestArgs {
    /// MTU of the wire, 1280 (the least of IPv6) to 9216; 4176 or more
    /// gives path MTU 4096
    #[arg(long, verbatim_doc_comment, default_value_t = 4200, value_parser = RangedU64ValueParser::<u32>::new().range(1280..=9216))]
    pub(crate) mtu: u32,
    /// kvm or tcg [default: kvm where it works]
    #[arg(long, value_parser = ["kvm", "tcg"])]
    pub(crate) accel: Option<String>,
    /// Seconds until the guest must be ready; emulated it needs 10, on a
    /// busy machine several times that
    #[arg(long, verbatim_doc_comment, default_value_t = 180, value_name = "SECONDS", value_parser = RangedU64ValueParser::<u64>::new().range(1..=3600))]
    pub(crate) boot: u64,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Boot the kernel peer and keep it until it is stopped (Ctrl-C, or kill).
    #[command(
        next_line_help = true,
        after_help = "Example, in two terminals (root):
  rocebud interop peer
      ready: Linux 6.1…
      namespace rbi4711n0: ours 10.98.0.1 …, rxe0 10.98.0.2 …
  rocebud interop guest rbi4711n0 -- ib_write_bw -d rxe0 &
      the server, in the guest
  ip netns exec rbi4711n0 rocebud run -- ib_write_bw 10.98.0.2
      the client, here
  rocebud interop guest rbi4711n0 -- 'rdma link; dmesg | tail'
      any shell command"
    )]
    Peer(GuestArgs),
    /// Serve as the other machine of `--target host:…`, until stopped.
    ///
    /// Whoever may connect runs commands here.
    #[command(
        next_line_help = true,
        after_help = "Examples:
  rocebud interop agent --listen 192.0.2.2 --from 192.0.2.1
      this machine's own RDMA devices
  rocebud run -- rocebud interop agent --listen 192.0.2.2 --from 192.0.2.1
      rocebud's
On the other machine: rocebud interop --target host:192.0.2.2"
    )]
    Agent {
        /// Where to answer: an address of this machine, with port 7471 or
        /// another; * is every address
        #[arg(long, verbatim_doc_comment, value_name = "ADDRESS[:PORT]", value_parser = listen)]
        listen: Listen,
        /// Answer this address only, and refuse all others
        #[arg(long, value_name = "ADDRESS")]
        from: Option<IpAddr>,
    },
    /// Run a command in the guest of `rocebud interop peer`.
    #[command(next_line_help = true)]
    Guest {
        /// The namespace that `peer` named
        namespace: String,
        /// Seconds it may take
        #[arg(long, default_value_t = 120, value_name = "SECONDS", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
        limit: u64,
        /// A shell command
        #[arg(required = true, trailing_var_arg = true)]
        command: Vec<String>,
    },
}

/// Where an agent answers; no address: on every one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Listen {
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: u16,
}

fn listen(text: &str) -> Result<Listen, String> {
    let understood = || -> Option<Listen> {
        if let Ok(socket) = text.parse::<SocketAddr>() {
            return Some(Listen {
                address: Some(socket.ip()),
                port: socket.port(),
            });
        }
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = bare.parse() {
            return Some(Listen {
                address: Some(address),
                port: PORT,
            });
        }
        let port = match text.strip_prefix('*')? {
            "" => PORT,
            rest => rest.strip_prefix(':')?.parse().ok()?,
        };
        Some(Listen {
            address: None,
            port,
        })
    };
    understood()
        .filter(|l| l.port != 0)
        .ok_or_else(|| "an address, ADDRESS:PORT, [IPv6]:PORT, * or *:PORT".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn an_agent_listens_where_it_is_told_and_nowhere_else() {
        let at = |text: &str| listen(text).map(|l| (l.address.map(|a| a.to_string()), l.port));
        let is = |address: &str, port| Ok((Some(address.to_owned()), port));
        assert_eq!(at("192.0.2.2"), is("192.0.2.2", PORT));
        assert_eq!(at("192.0.2.2:99"), is("192.0.2.2", 99));
        assert_eq!(at("::1"), is("::1", PORT));
        assert_eq!(at("[::1]:99"), is("::1", 99));
        assert_eq!(at("*"), Ok((None, PORT)));
        assert_eq!(at("*:99"), Ok((None, 99)));
        for wrong in [
            "",
            "*99",
            "host:99",
            "192.0.2.2:0",
            "192.0.2.2:70000",
            "7471",
        ] {
            assert!(at(wrong).is_err(), "{wrong:?}");
        }
        assert!(Args::try_parse_from(["rocebud interop", "agent"]).is_err());
    }

    #[test]
    fn numbers_without_sense_are_refused_with_their_range() {
        let refused = |arguments: &[&str]| {
            let all = ["rocebud interop", "--target", "rxe"];
            let parsed = Args::try_parse_from(all.iter().chain(arguments));
            parsed.err().map(|e| e.to_string()).unwrap_or_default()
        };
        assert!(refused(&["--mtu", "100"]).contains("1280..=9216"));
        assert!(refused(&["--boot", "0"]).contains("1..=3600"));
        assert!(refused(&["--lanes", "0"]).contains("1..=8"));
        assert!(refused(&["--differential", "--json", "x"]).contains("cannot be used with"));
        assert!(refused(&["--addresses", "mlx5_0"]).contains("invalid IP address"));
        assert_eq!(refused(&["--mtu", "1500", "--boot", "30"]), "");
    }

    #[test]
    fn help_speaks_of_the_command_that_people_type() {
        let mut command = Args::command();
        command.build();
        let peer = command.find_subcommand_mut("peer").expect("it is there");
        assert!(
            peer.render_help()
                .to_string()
                .contains("Usage: rocebud interop peer")
        );
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
