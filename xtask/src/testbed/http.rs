//! Just enough HTTP to ask an endpoint.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Status and body of `GET path`, from within the namespace of the calling thread.
///
/// # Errors
/// What the socket says, or `InvalidData` when the answer is not HTTP.
pub fn http_get(address: SocketAddr, path: &str, timeout: Duration) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    parse(&String::from_utf8_lossy(&answer))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{address}{path}: not HTTP")))
}

fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_body_are_told_apart() {
        assert_eq!(parse("HTTP/1.1 503 Busy\r\nA: b\r\n\r\nnot yet"), Some((503, "not yet".to_owned())));
        assert_eq!(parse("HTTP/1.0 200 OK\r\n\r\n"), Some((200, String::new())));
    }

    #[test]
    fn what_is_not_http_is_refused() {
        for answer in ["", "SSH-2.0\r\n\r\n", "HTTP/1.1 200 OK", "HTTP/1.1 fine\r\n\r\n"] {
            assert_eq!(parse(answer), None, "{answer:?}");
        }
    }
}
