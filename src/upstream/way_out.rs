//! Whether this machine could send anything at all: asked of its own routing table, without a packet, when a call has
//! failed. A box without a network must not take its providers for dead.
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Addresses that stand for "anywhere": they belong to nobody (RFC 5737, 3849), and nothing is sent to them.
const ANYWHERE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];
/// Any port will do.
const PORT: u16 = 9;

/// Whether there is a way to the internet by either family.
pub fn exists() -> bool {
    ANYWHERE.iter().any(|address| leads_to(SocketAddr::new(*address, PORT)))
}

/// Whether the routing table knows where to send what is for `peer`. In doubt it does.
pub fn leads_to(peer: SocketAddr) -> bool {
    let own: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting a datagram socket sends nothing; it only looks for a route and an address of our own on it.
    let found = UdpSocket::bind((own, 0)).and_then(|socket| socket.connect(peer));
    !found.is_err_and(|error| is_lack_of_route(&error))
}

fn is_lack_of_route(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NetworkUnreachable
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::AddrNotAvailable
    ) || error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_to_this_machine_itself_is_always_there() {
        assert!(leads_to("127.0.0.1:9".parse().unwrap()));
    }

    #[test]
    fn only_the_lack_of_a_route_is_one() {
        let is = |code| is_lack_of_route(&io::Error::from_raw_os_error(code));
        assert!(
            is(libc::ENETUNREACH) && is(libc::EHOSTUNREACH) && is(libc::ENETDOWN) && is(libc::EAFNOSUPPORT)
        );
        assert!(!is(libc::EMFILE) && !is(libc::EACCES) && !is(libc::EINVAL));
    }
}
