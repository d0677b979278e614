//! The ends of certificates, as a table and as JSON. Answers for `kubeadm certs check-expiration`.

use std::path::Path;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::authority::{Authority, parse};
use crate::cluster::{AUTHORITIES, CERTIFICATES, KUBECONFIGS, authority_row};
use crate::files::{extended, read};
use crate::kubeconfig;

/// Room between two columns of a table.
const PADDING: usize = 3;
/// The least width of a column, padding included.
const MINIMUM: usize = 10;

/// A certificate and when it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiration {
    /// Name of the certificate.
    pub name: &'static str,
    /// End of the certificate; none when it is not there.
    pub end: Option<Timestamp>,
    /// Name of the authority that signed it; none of an authority.
    pub authority: Option<&'static str>,
    /// Set where the authority's key is elsewhere.
    pub external: bool,
}

/// Every certificate of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expirations {
    /// Certificates with files of their own, and those in kubeconfigs.
    pub certificates: Vec<Expiration>,
    /// Authorities.
    pub authorities: Vec<Expiration>,
}

impl Expirations {
    /// Reads every certificate. A kubeconfig whose certificate is in a file of the kubelet's is left out: the kubelet
    /// renews it and tells of it in its metrics.
    ///
    /// # Errors
    /// When a file is there and cannot be read.
    pub fn read(certificates: &Path, kubeconfigs: &Path) -> Result<Self> {
        let external = |name: &str| -> Result<bool> {
            let stem = certificates.join(authority_row(name)?.file);
            Ok(extended(&stem, "crt").exists() && Authority::open(&stem)?.is_external())
        };
        let mut rows = Vec::new();
        for row in &CERTIFICATES {
            let end = end_of_file(&extended(&certificates.join(row.file), "crt"))?;
            rows.push(Expiration {
                name: row.name,
                end,
                authority: Some(row.authority),
                external: external(row.authority)?,
            });
        }
        for row in &KUBECONFIGS {
            let path = kubeconfigs.join(row.file);
            let end = if path.exists() {
                let Some(issued) = kubeconfig::embedded(&kubeconfig::read(&path)?)? else { continue };
                Some(end(&issued.certificate).with_context(|| path.display().to_string())?)
            } else {
                None
            };
            rows.push(Expiration { name: row.file, end, authority: Some("ca"), external: external("ca")? });
        }
        rows.sort_by_key(|row| row.name);
        let authorities = AUTHORITIES.iter().map(|row| {
            let end = end_of_file(&extended(&certificates.join(row.file), "crt"))?;
            Ok(Expiration { name: row.name, end, authority: None, external: external(row.name)? })
        });
        Ok(Self { certificates: rows, authorities: authorities.collect::<Result<_>>()? })
    }

    /// The earliest end of all that is there.
    #[must_use]
    pub fn first_end(&self) -> Option<Timestamp> {
        self.certificates.iter().chain(&self.authorities).filter_map(|row| row.end).min()
    }

    /// The two tables that people read.
    #[must_use]
    pub fn table(&self, now: Timestamp) -> String {
        let yes_no = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        let mut lines = vec![
            ["CERTIFICATE", "EXPIRES", "RESIDUAL TIME", "CERTIFICATE AUTHORITY", "EXTERNALLY MANAGED"]
                .map(str::to_owned)
                .to_vec(),
        ];
        for row in &self.certificates {
            lines.push(match row.end {
                Some(end) => vec![
                    row.name.to_owned(),
                    moment(end),
                    residual(end, now),
                    row.authority.unwrap_or_default().to_owned(),
                    yes_no(row.external),
                ],
                None => vec![format!("!MISSING! {}", row.name)],
            });
        }
        let first = columns(&lines);
        let heads = ["CERTIFICATE AUTHORITY", "EXPIRES", "RESIDUAL TIME", "EXTERNALLY MANAGED"];
        let mut lines = vec![heads.map(str::to_owned).to_vec()];
        for row in &self.authorities {
            lines.push(match row.end {
                Some(end) => vec![row.name.to_owned(), moment(end), residual(end, now), yes_no(row.external)],
                None => vec![format!("!MISSING! {}", row.name)],
            });
        }
        format!("{first}\n{}", columns(&lines))
    }

    /// The report for programs: kubeadm's `CertificateExpirationInfo`.
    #[must_use]
    pub fn json(&self, now: Timestamp) -> Value {
        let rows = |rows: &[Expiration]| -> Vec<Value> { rows.iter().map(|row| row.json(now)).collect() };
        json!({
            "kind": "CertificateExpirationInfo",
            "apiVersion": "output.kubeadm.k8s.io/v1alpha3",
            "certificates": rows(&self.certificates),
            "certificateAuthorities": rows(&self.authorities),
        })
    }
}

impl Expiration {
    fn json(&self, now: Timestamp) -> Value {
        let mut row = json!({
            "name": self.name,
            "expirationDate": self.end.map(|end| end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
            "residualTime": self.end.map_or(0, |end| end.duration_since(now).as_secs()),
            "externallyManaged": self.external,
            "missing": self.end.is_none(),
        });
        if let Some(authority) = self.authority {
            row["caName"] = authority.into();
        }
        row
    }
}

fn end_of_file(path: &Path) -> Result<Option<Timestamp>> {
    if !path.exists() {
        return Ok(None);
    }
    end(&read(path)?).map(Some).with_context(|| path.display().to_string())
}

fn end(certificate: &str) -> Result<Timestamp> {
    let parsed = parse(certificate)?;
    let end = parsed.parse_x509()?.validity().not_after.timestamp();
    Ok(Timestamp::from_second(end)?)
}

fn moment(end: Timestamp) -> String {
    end.strftime("%b %d, %Y %H:%M UTC").to_string()
}

/// The time that is left, in its largest unit: apimachinery's `ShortHumanDuration`.
fn residual(end: Timestamp, now: Timestamp) -> String {
    let seconds = end.duration_since(now).as_secs();
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..0 => "0s".to_owned(),
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        86_400..31_536_000 => format!("{}d", seconds / 86_400),
        _ => format!("{}y", seconds / 31_536_000),
    }
}

/// Lines in columns that are as wide as their widest cell; a line's last cell counts for none.
fn columns(lines: &[Vec<String>]) -> String {
    let count = lines.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count)
        .map(|column| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.len() + PADDING).max().unwrap_or(0).max(MINIMUM)
        })
        .collect();
    let text = |line: &Vec<String>| -> String {
        let padded: String = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", padded.trim_end())
    };
    lines.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn residual_times_have_one_unit() {
        for (seconds, expected) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3599, "59m"),
            (3600, "1h"),
            (86_399, "23h"),
            (86_400, "1d"),
            (31_535_999, "364d"),
            (31_536_000, "1y"),
        ] {
            assert_eq!(residual(at(1_000_000 + seconds), at(1_000_000)), expected, "{seconds}");
        }
    }

    #[test]
    fn a_begun_second_is_not_left_any_more() {
        let now = Timestamp::from_millisecond(1_000_000_200).unwrap();
        assert_eq!(residual(at(1_000_000 + 31_536_000), now), "364d");
    }

    #[test]
    fn tables_are_those_of_kubeadm() {
        let now = at(1_800_000_000);
        let report = Expirations {
            certificates: vec![
                Expiration { name: "admin.conf", end: Some(at(1_831_535_999)), authority: Some("ca"), external: false },
                Expiration { name: "apiserver", end: Some(at(1_800_000_030)), authority: Some("ca"), external: true },
                Expiration { name: "etcd-peer", end: None, authority: Some("etcd-ca"), external: false },
            ],
            authorities: vec![
                Expiration { name: "ca", end: Some(at(2_115_360_000)), authority: None, external: false },
                Expiration { name: "etcd-ca", end: None, authority: None, external: false },
            ],
        };
        let expected = "\
CERTIFICATE           EXPIRES                  RESIDUAL TIME   CERTIFICATE AUTHORITY   EXTERNALLY MANAGED
admin.conf            Jan 15, 2028 07:59 UTC   364d            ca                      no
apiserver             Jan 15, 2027 08:00 UTC   30s             ca                      yes
!MISSING! etcd-peer

CERTIFICATE AUTHORITY   EXPIRES                  RESIDUAL TIME   EXTERNALLY MANAGED
ca                      Jan 12, 2037 08:00 UTC   10y             no
!MISSING! etcd-ca
";
        assert_eq!(report.table(now), expected);
        assert_eq!(report.first_end(), Some(at(1_800_000_030)));
        let json = report.json(now);
        assert_eq!(
            json["certificates"][0],
            json!({
                "name": "admin.conf", "expirationDate": "2028-01-15T07:59:59Z", "residualTime": 31_535_999,
                "externallyManaged": false, "caName": "ca", "missing": false,
            })
        );
        assert_eq!(json["certificates"][2]["missing"], true);
        assert_eq!(json["certificateAuthorities"][0].get("caName"), None);
    }
}
