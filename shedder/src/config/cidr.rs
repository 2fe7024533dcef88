//! CIDRs, with the part that is wrong named.

use std::net::IpAddr;

use ipnet::IpNet;

use super::suggest::show;

/// Reads a CIDR such as `10.20.0.0/16` or `2001:db8::/32`.
///
/// # Errors
///
/// A sentence that says which part is wrong and what to write instead.
pub fn cidr(text: &str) -> Result<IpNet, String> {
    let shown = show(text);
    let (address_text, prefix_text) =
        text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let Ok(address) = address_text.parse::<IpAddr>() else {
        let part = show(address_text);
        return Err(format!(
            "`{shown}` is no CIDR: `{part}` is no IP address; write one such as \"10.20.0.0/16\" or \"2001:db8::/32\""
        ));
    };
    let bits: u8 = if address.is_ipv4() { 32 } else { 128 };
    let Some(prefix_text) = prefix_text else {
        return Err(format!(
            "`{shown}` has no prefix length: write \"{address}/{bits}\" for this one address"
        ));
    };
    let prefix =
        prefix_text.bytes().all(|byte| byte.is_ascii_digit()).then(|| prefix_text.parse::<u8>().ok());
    let Some(net) = prefix.flatten().and_then(|prefix| IpNet::new(address, prefix).ok()) else {
        let part = show(prefix_text);
        return Err(format!("`{shown}` is no CIDR: prefix length `{part}` is no number from 0 to {bits}"));
    };
    if net.addr() != net.network() {
        return Err(format!(
            "`{shown}` has address bits beyond its prefix: write \"{}\" for the network or \"{address}/{bits}\" for \
             this one address",
            net.trunc()
        ));
    }
    Ok(net)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cidrs_of_both_families_are_read() {
        for text in ["10.20.0.0/16", "0.0.0.0/0", "192.0.2.1/32", "2001:db8::/32", "::/0", "::1/128"] {
            assert_eq!(cidr(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn the_wrong_part_is_named() {
        for (text, part) in [
            ("", "`` is no IP address"),
            ("10.0.0/8", "`10.0.0` is no IP address"),
            ("example.org/8", "`example.org` is no IP address"),
            ("10.0.0.1", "has no prefix length: write \"10.0.0.1/32\""),
            ("::1", "has no prefix length: write \"::1/128\""),
            ("10.0.0.0/33", "prefix length `33` is no number from 0 to 32"),
            ("10.0.0.0/", "prefix length `` is no number from 0 to 32"),
            ("10.0.0.0/+8", "prefix length `+8` is no number"),
            ("2001:db8::/129", "prefix length `129` is no number from 0 to 128"),
            ("10.20.1.0/16", "write \"10.20.0.0/16\" for the network or \"10.20.1.0/32\""),
        ] {
            let why = cidr(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
