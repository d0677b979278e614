//! The ranges that flags name: those that nodes' blocks are cut from, how long the blocks' prefixes are, and those of
//! services, which no node may have. What is refused is refused in upstream's words. Answers for upstream's
//! `processCIDRs`, `setNodeCIDRMaskSizes`.

use ipnet::IpNet;

const PREFIX_V4: u8 = 24;
const PREFIX_V6: u8 = 64;

/// Errors of the ranges that flags name, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// Text that is no range.
    #[error("failed to parse cidr value:{0:?} with error:invalid CIDR address: {0}")]
    Cidr(String),
    /// So many ranges, all of one family.
    #[error("len of ClusterCIDRs=={0} and they are not configured as dual stack (at least one from each IPFamily")]
    OneFamily(usize),
    /// So many ranges.
    #[error("length of clusterCIDRs is:{0} more than max allowed of 2")]
    TooMany(usize),
    /// Ranges of services, all of one family.
    #[error("serviceCIDR and secondaryServiceCIDR are not dualstack (from different IPfamiles)")]
    ServicesOfOneFamily,
}

/// The ranges of `--cluster-cidr`: one, or one of each family.
pub fn cluster(list: &[String]) -> Result<Vec<IpNet>, RangeError> {
    let parse = |text: &String| text.parse::<IpNet>().map_err(|_| RangeError::Cidr(text.clone()));
    if list.is_empty() {
        return parse(&String::new()).map(|range| vec![range]);
    }
    let ranges: Vec<IpNet> = list.iter().map(parse).collect::<Result<_, _>>()?;
    let n = ranges.len();
    if n > 1 && !of_both_families(&ranges) {
        return Err(RangeError::OneFamily(n));
    }
    if n > 2 {
        return Err(RangeError::TooMany(n));
    }
    Ok(ranges)
}

/// The ranges of `--service-cluster-ip-range`. What cannot be read is in nobody's way.
pub fn services(list: &[String]) -> Result<Vec<IpNet>, RangeError> {
    let parse = |text: &String| {
        let range = text.parse::<IpNet>();
        range.inspect_err(|error| tracing::warn!(cidr = text, %error, "unsuccessful parsing of service CIDR")).ok()
    };
    let ranges: Vec<IpNet> = list.iter().filter_map(parse).collect();
    if ranges.len() > 1 && !of_both_families(&ranges) {
        return Err(RangeError::ServicesOfOneFamily);
    }
    Ok(ranges)
}

fn of_both_families(ranges: &[IpNet]) -> bool {
    let v4 = |r: &IpNet| r.addr().is_ipv4();
    ranges.iter().any(v4) && !ranges.iter().all(v4)
}

/// Returns the lengths of blocks' prefixes, range by range: by `--node-cidr-mask-size` and by its `-ipv4` and `-ipv6`
/// forms, of which 0 is unset.
pub fn masks((any, v4, v6): (u8, u8, u8), ranges: &[IpNet]) -> Result<Vec<u8>, &'static str> {
    let [first_v6, dual] = [ranges.first().is_some_and(|r| r.addr().is_ipv6()), ranges.len() > 1];
    if dual && any != 0 {
        return Err("usage of --node-cidr-mask-size is not allowed with dual-stack clusters");
    }
    if any != 0 && (v4 != 0 || v6 != 0) {
        return Err(
            "usage of --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6 is not allowed if --node-cidr-mask-size is set. For dual-stack clusters please unset it and use IPFamily specific flags",
        );
    }
    if !dual && v4 != 0 && first_v6 {
        return Err("usage of --node-cidr-mask-size-ipv4 is not allowed for a single-stack IPv6 cluster");
    }
    if !dual && v6 != 0 && !first_v6 {
        return Err("usage of --node-cidr-mask-size-ipv6 is not allowed for a single-stack IPv4 cluster");
    }
    let pick = |own: u8, usual: u8| [any, own].into_iter().find(|n| *n > 0).unwrap_or(usual);
    let (v4, v6) = (pick(v4, PREFIX_V4), pick(v6, PREFIX_V6));
    Ok(ranges.iter().map(|r| if r.addr().is_ipv4() { v4 } else { v6 }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<String> {
        text.split(',').filter(|t| !t.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn of_the_cluster() {
        for (text, want) in [
            ("10.244.0.0/16", Ok(1)),
            ("10.244.0.0/16,fd00::/48", Ok(2)),
            ("", Err(r#"failed to parse cidr value:"" with error:invalid CIDR address: "#)),
            ("ten", Err(r#"failed to parse cidr value:"ten" with error:invalid CIDR address: ten"#)),
            (
                "10.0.0.0/16,10.1.0.0/16",
                Err(
                    "len of ClusterCIDRs==2 and they are not configured as dual stack (at least one from each IPFamily",
                ),
            ),
            ("10.0.0.0/16,10.1.0.0/16,fd00::/48", Err("length of clusterCIDRs is:3 more than max allowed of 2")),
        ] {
            assert_eq!(
                cluster(&list(text)).map(|r| r.len()).map_err(|e| e.to_string()),
                want.map_err(str::to_owned),
                "{text}"
            );
        }
    }

    #[test]
    fn of_services() {
        for (text, want) in [("", Some(0)), ("10.96.0.0/12,fd00::/108", Some(2)), ("10.96.0.0/12,x", Some(1))] {
            assert_eq!(services(&list(text)).ok().map(|r| r.len()), want, "{text}");
        }
        let why = services(&list("10.96.0.0/12,10.112.0.0/12")).expect_err("one family").to_string();
        assert_eq!(why, "serviceCIDR and secondaryServiceCIDR are not dualstack (from different IPfamiles)");
    }

    #[test]
    fn prefixes() {
        for (flags, ranges, want) in [
            ((0, 0, 0), "10.0.0.0/16", Ok(vec![24])),
            ((0, 0, 0), "fd00::/48,10.0.0.0/16", Ok(vec![64, 24])),
            ((26, 0, 0), "10.0.0.0/16", Ok(vec![26])),
            ((0, 25, 0), "10.0.0.0/16", Ok(vec![25])),
            ((0, 25, 80), "10.0.0.0/16,fd00::/72", Ok(vec![25, 80])),
            ((26, 0, 0), "10.0.0.0/16,fd00::/48", Err("usage of --node-cidr-mask-size is not allowed with dual")),
            ((26, 25, 0), "10.0.0.0/16", Err("usage of --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6 is")),
            (
                (0, 25, 0),
                "fd00::/48",
                Err("usage of --node-cidr-mask-size-ipv4 is not allowed for a single-stack IPv6"),
            ),
            ((0, 0, 80), "10.0.0.0/16", Err("usage of --node-cidr-mask-size-ipv6 is not allowed for a single-stack")),
        ] {
            let got = masks(flags, &cluster(&list(ranges)).expect("ranges"));
            match (&got, &want) {
                (Err(got), Err(want)) => assert!(got.starts_with(want), "{got}"),
                (got, want) => assert_eq!(got.as_ref().ok(), want.as_ref().ok(), "{flags:?} {ranges}"),
            }
        }
    }
}
