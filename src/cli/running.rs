//! The gateway that a command is about: the one that runs on this data folder, else the one that answers where these
//! settings say.
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

use serde_json::Value;

use super::Failure;
use super::command::{self, Reply};
use crate::base::text::Secret;
use crate::catalog::load::Snapshot;
use crate::catalog::settings::Settings;
use crate::service::reachable;
use crate::store::glance;

/// Where the gateway of these settings can be reached from this machine.
pub fn address(settings: &Settings, port: Option<u16>) -> Result<SocketAddr, Failure> {
    let host = settings.host.as_str();
    let mut found = (host, port.unwrap_or(settings.port))
        .to_socket_addrs()
        .map_err(|error| Failure::Failed(format!("host {host}: {error}")))?;
    let found = found.next().ok_or_else(|| Failure::Failed(format!("host {host} has no address")))?;
    Ok(SocketAddr::new(reachable(found.ip()), found.port()))
}

/// Where the gateway that owns a data folder listens, whatever the settings have become meanwhile; `None` where none does,
/// or it could not say so.
pub fn owner_of(data: &Path) -> Option<SocketAddr> {
    let (address, _) = command::door(data).filter(|_| glance::is_owned(data))?;
    Some(address)
}

/// The gateway, as far as one runs.
pub enum Running {
    No,
    /// It owns the folder, and does not answer.
    Silent,
    At(Gateway),
}

/// One that answers.
pub struct Gateway {
    pub address: SocketAddr,
    pub uptime_s: u64,
    /// Whether it uses the data folder of these settings.
    pub ours: bool,
    key: Option<Secret>,
}

impl Running {
    /// Looks for it; `port` says where it listens in place of the folder and the settings. Without a snapshot the settings
    /// cannot be read, and the folder alone tells.
    pub fn find(data: &Path, snapshot: Option<&Snapshot>, port: Option<u16>) -> Running {
        let owned = glance::is_owned(data);
        let door = command::door(data).filter(|_| owned);
        let nameless = door.is_none();
        let door = door.filter(|(address, _)| port.is_none_or(|port| port == address.port()));
        if let Some((address, word)) = door {
            if let Some(uptime_s) = uptime_s(address) {
                return Running::At(Gateway { address, uptime_s, ours: true, key: Some(word) });
            }
        }
        let address = snapshot.and_then(|snapshot| address(&snapshot.settings, port).ok());
        match address.and_then(|address| Some((address, uptime_s(address)?))) {
            Some((address, uptime_s)) => {
                let key = snapshot.and_then(Snapshot::admin_key).cloned();
                // One that could not write where it is may be ours all the same.
                Running::At(Gateway { address, uptime_s, ours: owned && nameless, key })
            }
            None if owned => Running::Silent,
            None => Running::No,
        }
    }
}

impl Gateway {
    /// Gets `path` with the owner's right.
    pub fn get(&self, path: &str) -> std::io::Result<Reply> {
        command::get(self.address, path, self.key.as_ref())
    }
}

/// Since how many seconds a gateway runs at an address; `None` for anything else that listens there.
fn uptime_s(address: SocketAddr) -> Option<u64> {
    let Reply { status, body } = command::get(address, "/healthz", None).ok()?;
    let known = status == 200 && body["version"].is_string();
    body.get("uptimeSec").filter(|_| known).and_then(Value::as_u64)
}
