//! Whole files to and from a plain web server, for backups: sent and read piece by piece, under one deadline, with the
//! names, certificates and proxies of all other calls. No redirects.
use std::io::Read;
use std::time::{Duration, Instant};

use ureq::SendBody;
use ureq::http::header::{self, HeaderMap, HeaderValue};
use ureq::http::{self, Uri};

use super::client::{Client, Reply, fault_of, has_sound_port, request};
use super::cut::Cut;
use super::watch::{Current, Freshness, Watch, enter};
use crate::base::text::Secret;
use crate::wire::exchange::{Fault, FaultKind, Phase};

/// For TCP, proxy and TLS together.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// What is to be done with the file of an address.
pub enum Act<'a> {
    Get,
    /// Its content, and how long that is.
    Put(&'a mut dyn Read, u64),
    Delete,
}

/// One request for one file.
pub struct Delivery<'a> {
    /// Without credentials.
    pub url: &'a str,
    /// The value of `Authorization`.
    pub authorization: Option<&'a Secret>,
    /// For all of it.
    pub within: Duration,
}

impl Client {
    /// Sends the request, and waits for the head of the answer, whatever its status.
    pub fn deliver(&self, delivery: &Delivery<'_>, act: Act<'_>) -> Result<Reply, Fault> {
        let watch = Watch::new(Instant::now() + delivery.within);
        let wrong = |message: &str| Fault {
            phase: Phase::Resolve,
            kind: FaultKind::Protocol,
            message: message.into(),
            request_sent: false,
        };
        let uri: Option<Uri> = delivery.url.parse().ok();
        let sound = |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https")) && has_sound_port(uri);
        let uri = uri.filter(sound).ok_or_else(|| wrong("it is no http:// or https:// URL"))?;
        let proxy = self.proxies.choose(&uri).cloned();
        let mut headers = HeaderMap::with_capacity(4);
        let value = |secret: &Secret| {
            HeaderValue::from_str(secret.expose()).map_err(|_| wrong("its credentials cannot be sent"))
        };
        if let Some(secret) = delivery.authorization {
            headers.insert(header::AUTHORIZATION, value(secret)?);
        }
        let plain = uri.scheme_str() == Some("http");
        if let Some(secret) = proxy.as_ref().filter(|_| plain).and_then(|proxy| proxy.authorization.as_ref())
        {
            headers.insert(header::PROXY_AUTHORIZATION, value(secret)?);
        }
        // Rare calls: a connection that has waited since yesterday is not worth trying.
        let current = Current::new(&Cut::new(), &watch, Freshness::New, CONNECT_MAX, proxy);
        let entered = enter(&current);
        let answered = match act {
            Act::Get => self.agent.run(request(http::Method::GET, uri, headers, ())),
            Act::Delete => self.agent.run(request(http::Method::DELETE, uri, headers, ())),
            Act::Put(mut content, length) => {
                headers.insert(header::CONTENT_LENGTH, length.into());
                headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
                let body = SendBody::from_reader(&mut content);
                self.agent.run(request(http::Method::PUT, uri, headers, body))
            }
        };
        drop(entered);
        let reply = answered.map_err(|error| fault_of(&error, &current))?;
        current.watch.set_phase(Phase::Stream);
        Ok(Reply::new(reply, &current))
    }
}
