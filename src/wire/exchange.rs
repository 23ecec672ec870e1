//! The vocabulary of one upstream exchange: phases, faults, headers. Judged by `route`, produced by `upstream`.

/// How far a call came. Timeouts, blame and figures all speak of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Looking up the host name.
    Resolve,
    /// TCP and TLS.
    Connect,
    /// Writing the request.
    Send,
    /// Waiting for the head of the answer, or for the first data event of a stream.
    FirstByte,
    /// Reading the rest.
    Stream,
    End,
}

impl Phase {
    /// Its name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Resolve => "resolve",
            Phase::Connect => "connect",
            Phase::Send => "send",
            Phase::FirstByte => "first byte",
            Phase::Stream => "stream",
            Phase::End => "end",
        }
    }
}

/// Why a call has no (whole) answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    Dns,
    /// The name resolves to an address that is never called (link-local, cloud metadata).
    BlockedAddress,
    Refused,
    /// No route, network down.
    Unreachable,
    Tls,
    /// The certificate begins in the future as our clock sees it.
    CertNotYetValid,
    /// The proxy named by the environment failed.
    Proxy,
    /// The phase tells which limit ran out.
    Timeout,
    /// The peer closed or reset the connection before the answer was whole.
    Closed,
    /// What came is not HTTP, or its encoding is broken.
    Protocol,
    /// An answer above our bounds.
    TooLarge,
    /// This process has no descriptor left for a connection; it says nothing about the peer.
    Exhausted,
    /// Cut by us: the client left, or the gateway stops.
    Cut,
}

/// A call that failed below HTTP.
#[derive(Clone, Debug)]
pub struct Fault {
    pub phase: Phase,
    pub kind: FaultKind,
    /// For people: no host, no port, no key.
    pub message: String,
    /// Whether any byte of the request may have reached the upstream.
    pub request_sent: bool,
}

/// Bytes of a header, its name included.
const HEADER_BYTES_USUAL: usize = 40;

/// Response headers, names in lower case, in order of arrival. Kept as one text, because an answer has two dozen of them
/// and few are ever looked at.
#[derive(Clone, Debug, Default)]
pub struct Headers {
    text: String,
    /// Where each name ends, and each value; a name begins where the value before it ends.
    ends: Vec<(usize, usize)>,
}

impl Headers {
    /// None yet, with room for so many of a usual length.
    pub fn with_capacity(count: usize) -> Headers {
        Headers { text: String::with_capacity(count * HEADER_BYTES_USUAL), ends: Vec::with_capacity(count) }
    }

    /// Adds a header; `name` is in lower case.
    pub fn push(&mut self, name: &str, value: &str) {
        self.text.push_str(name);
        let name_ends = self.text.len();
        self.text.push_str(value);
        self.ends.push((name_ends, self.text.len()));
    }

    /// The first value under `name`, which is given in lower case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// All names with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let begins = std::iter::once(0).chain(self.ends.iter().map(|(_, ends)| *ends));
        begins.zip(&self.ends).map(|(begins, (name_ends, ends))| {
            (&self.text[begins..*name_ends], &self.text[*name_ends..*ends])
        })
    }
}

impl<N: AsRef<str>, V: AsRef<str>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Headers {
        let mut headers = Headers::default();
        for (name, value) in pairs {
            headers.push(name.as_ref(), value.as_ref());
        }
        headers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_several_values_counts() {
        let headers: Headers = [("a", "1"), ("b", ""), ("a", "2")].into_iter().collect();
        assert_eq!((headers.get("a"), headers.get("b"), headers.get("c")), (Some("1"), Some(""), None));
        assert_eq!(headers.iter().collect::<Vec<_>>(), [("a", "1"), ("b", ""), ("a", "2")]);
    }
}
