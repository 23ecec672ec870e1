//! Addresses at which nobody serves: one that refuses, and one that never answers.
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};

/// A port of this machine that refuses connections for as long as the value lives: it is taken, but nobody listens.
pub struct ClosedPort {
    addr: SocketAddr,
    _socket: Socket,
}

impl ClosedPort {
    pub fn take() -> io::Result<ClosedPort> {
        let socket = bound()?;
        Ok(ClosedPort { addr: address(&socket)?, _socket: socket })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// A base URL there.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.addr)
    }
}

/// A port at which connecting takes for ever: its queue of waiting connections is full, so the kernel drops what
/// comes. (Linux does; other systems may refuse.)
pub struct SilentPort {
    addr: SocketAddr,
    _listener: Socket,
    _waiting: Vec<TcpStream>,
}

impl SilentPort {
    /// More connections than the shortest queue holds.
    const FILL_MAX: usize = 8;

    pub fn take() -> io::Result<SilentPort> {
        let listener = bound()?;
        listener.listen(1)?;
        let addr = address(&listener)?;
        let fill = || TcpStream::connect_timeout(&addr, Duration::from_millis(100)).ok();
        let waiting = std::iter::from_fn(fill).take(SilentPort::FILL_MAX).collect();
        Ok(SilentPort { addr, _listener: listener, _waiting: waiting })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// A base URL there.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.addr)
    }
}

fn bound() -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))))?;
    Ok(socket)
}

fn address(socket: &Socket) -> io::Result<SocketAddr> {
    socket.local_addr()?.as_socket().ok_or_else(|| io::ErrorKind::Unsupported.into())
}
