//! By which names this gateway is called. A page on the internet can have its own name lead to this machine (DNS
//! rebinding), and its browser then takes us for that page's server; what gives it away is the `Host` that it sends.
use std::net::IpAddr;

use super::sock;
use crate::catalog::settings::Settings;
use crate::wire::error::ApiError;

/// Longest name that is repeated in a message.
const SHOWN_MAX: usize = 80;

/// The names of this machine in its network, in lower case: its own, and the same under `.local`.
#[derive(Debug, Default)]
pub struct MachineNames(Vec<String>);

impl MachineNames {
    /// Asks the system: by a call, because a confined service sees no `/proc/sys`. Where it does not tell, addresses and
    /// configured names remain.
    pub fn of_this_machine() -> MachineNames {
        MachineNames::of(&sock::machine_name().unwrap_or_default())
    }

    /// The names of a machine that calls itself `name`, with or without a domain.
    pub fn of(name: &str) -> MachineNames {
        let name = name.trim().trim_end_matches('.').to_ascii_lowercase();
        let short = name.split('.').next().unwrap_or_default();
        if short.is_empty() || name.starts_with('(') {
            return MachineNames::default();
        }
        let mut names = vec![short.to_owned(), format!("{short}.local")];
        if name != short {
            names.push(name);
        }
        MachineNames(names)
    }

    /// The name that other machines of the network find it by.
    pub fn in_network(&self) -> Option<&str> {
        self.0.get(1).map(String::as_str)
    }

    /// Whether the `Host` of a request, port included, is one of ours. A client of HTTP/1.0 may send none; browsers
    /// always do.
    pub fn know(&self, host: Option<&str>, settings: &Settings) -> bool {
        let Some(host) = host else { return true };
        let name = bare(host);
        let is = |known: &str| bare(known).eq_ignore_ascii_case(name);
        // An address leads nowhere else, whatever a name server says.
        name.is_empty()
            || address(name).is_some()
            || is_loopback_name(name)
            || is(&settings.host)
            || self.0.iter().any(|known| is(known))
            || settings.hosts.iter().any(|known| is(known))
    }
}

/// A host without its port, its brackets and a dot at its end.
pub fn bare(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((v6, _)) => v6,
        // More than one colon is an IPv6 address without brackets.
        None if host.matches(':').count() > 1 => host,
        None => host.split_once(':').map_or(host, |(name, _)| name).trim_end_matches('.'),
    }
}

/// The address that a bare host is, its zone left out.
fn address(name: &str) -> Option<IpAddr> {
    name.split('%').next().unwrap_or(name).parse().ok()
}

/// Whether a bare host is a name that can only mean the machine itself.
fn is_loopback_name(name: &str) -> bool {
    let tail = name.rsplit('.').next().unwrap_or(name);
    tail.eq_ignore_ascii_case("localhost")
}

/// Whether a `Host` can only have been meant for the machine itself.
pub fn is_loopback(host: &str) -> bool {
    let name = bare(host);
    address(name).map_or_else(|| is_loopback_name(name), |address| address.to_canonical().is_loopback())
}

/// The answer to a request by a name that is not ours.
pub fn misdirected(host: &str) -> ApiError {
    let shown = crate::base::text::truncate(host, SHOWN_MAX);
    let message = format!(
        "this gateway is not known by the name `{shown}`; if it is yours, add it to the setting `hosts` (FREEWAY_HOSTS), or use an IP address"
    );
    ApiError::new(421, "", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a1_only_names_of_this_machine_are_ours() {
        let machine = MachineNames::of("Pi\n");
        let settings = Settings {
            host: "box.example".into(),
            hosts: vec!["freeway.example".into(), "other.example:9000".into()],
            ..Settings::default()
        };
        let check = |host: &str, expected: bool| {
            assert_eq!(machine.know(Some(host), &settings), expected, "{host}");
        };
        for ours in [
            "localhost",
            "LOCALHOST:8787",
            "app.localhost",
            "127.0.0.1:8787",
            "192.168.1.9",
            "[::1]:8787",
            "[fe80::1%25eth0]",
            "::1",
            "8.8.8.8",
            "pi",
            "pi:1",
            "PI.local.",
            "box.example:80",
            "freeway.example",
            "other.example",
            "",
        ] {
            check(ours, true);
        }
        for strange in [
            "evil.example",
            "pi.evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "pi.lan",
            "[evil]",
            "xpi",
            "local",
        ] {
            check(strange, false);
        }
        assert!(machine.know(None, &settings));
        assert!(!MachineNames::of("(none)").know(Some("(none)"), &settings));
        assert!(MachineNames::of("pi.home.example").know(Some("pi.home.example"), &settings));
        assert_eq!(machine.in_network(), Some("pi.local"));
    }

    #[test]
    fn loopback_is_a_matter_of_the_host_alone() {
        assert!(is_loopback("localhost:1") && is_loopback("[::1]:1") && is_loopback("127.9.9.9"));
        assert!(!is_loopback("192.168.1.9") && !is_loopback("pi.local") && !is_loopback("evil.example"));
    }
}
