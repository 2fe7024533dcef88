//! Real networks for tests: namespaces joined by veth pairs, a server of known capacity, an open-loop client.
//!
//! Everything here has an owner in its name (`shedder-<pid>-<n>`), goes when its value is dropped, and is
//! cleaned up by the next run where its owner was killed. It needs root. Nothing touches the machine's own
//! interfaces.
//!
//! ```no_run
//! use std::time::Duration;
//! use xtask::testbed::{Live, Load, Namespace, Pace, Server, ServerOptions, VethPair};
//!
//! # fn main() -> anyhow::Result<()> {
//! let (client, server) = (Namespace::new()?, Namespace::new()?);
//! let link = VethPair::new(&client, &server)?;
//! let address = (link.b.ipv4, 8080).into();
//! let served = Server::start(&server, address, ServerOptions::default())?;
//! let load = Load { duration: Duration::from_secs(1), ..Load::new(address, Pace::Open { per_second: 500 }) };
//! let outcome = load.run_in(&client, &Live::default())?;
//! println!("{} of {} were useful, {:?}", outcome.useful(), outcome.offered, served.stop());
//! # Ok(())
//! # }
//! ```

mod attempt;
mod cgroup;
mod client;
mod clock;
mod cpu;
mod http;
mod leftovers;
mod load;
mod namespace;
mod outcome;
mod pins;
mod record;
mod schedule;
mod server;
mod stateless;
mod veth;

pub use cgroup::Cgroup;
pub use cpu::cpus;
pub use http::http_get;
pub use leftovers::Leftovers;
pub use load::{Live, Load, Pace};
pub use namespace::Namespace;
pub use outcome::Outcome;
pub use pins::PinDirectory;
pub use record::{Fate, Record};
pub use schedule::{Schedule, Step};
pub use server::{Server, ServerCounts, ServerOptions, listen_on};
pub use stateless::{STATELESS_NETWORK, StatelessLoad, StatelessOutcome, stateless_source};
pub use veth::{End, Sources, VethPair};
