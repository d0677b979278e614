//! The DER of a signed certificate, from its parts.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use yasna::models::ObjectIdentifier;
use yasna::tags::{TAG_GENERALIZEDTIME, TAG_UTCTIME};
use yasna::{DERWriter, DERWriterSeq, Tag};

const KEY_USAGE: &[u64] = &[2, 5, 29, 15];
const ALTERNATIVE_NAMES: &[u64] = &[2, 5, 29, 17];
const BASIC_CONSTRAINTS: &[u64] = &[2, 5, 29, 19];
const AUTHORITY_KEY_ID: &[u64] = &[2, 5, 29, 35];
const EXTENDED_KEY_USAGE: &[u64] = &[2, 5, 29, 37];
/// Version 3, as the field counts.
const VERSION: u8 = 2;

/// Object identifier of an algorithm or an extension, part by part.
pub(super) type Oid = &'static [u64];

/// Algorithm of a signature.
#[derive(Clone, Copy)]
pub(super) struct Algorithm {
    /// Object identifier.
    pub oid: Oid,
    /// RSA's algorithms have parameters, which are null.
    pub null_parameters: bool,
}

/// Contents of a certificate. Fields called encoded are DER already.
pub(super) struct Contents<'a> {
    /// Positive serial number, big endian.
    pub serial: &'a [u8],
    /// The authority's algorithm.
    pub algorithm: Algorithm,
    /// The authority's subject, encoded.
    pub issuer: &'a [u8],
    /// Beginning and end.
    pub validity: (Timestamp, Timestamp),
    /// Subject, encoded.
    pub subject: &'a [u8],
    /// Public key, encoded.
    pub public_key: &'a [u8],
    /// Numbers of the key-usage bits.
    pub key_usages: &'a [u8],
    /// Extended key usages.
    pub purposes: &'a [Oid],
    /// The authority's key identifier.
    pub authority_key_id: Option<&'a [u8]>,
    /// Subject alternative names, encoded; empty without.
    pub names: &'a [u8],
}

impl Contents<'_> {
    /// Encodes what is signed.
    pub(super) fn to_be_signed(&self) -> Vec<u8> {
        yasna::construct_der(|writer| {
            writer.write_sequence(|fields| {
                fields.next().write_tagged(Tag::context(0), |version| version.write_u8(VERSION));
                fields.next().write_bigint_bytes(self.serial, true);
                self.algorithm.write(fields.next());
                fields.next().write_der(self.issuer);
                fields.next().write_sequence(|times| {
                    write_time(times.next(), self.validity.0);
                    write_time(times.next(), self.validity.1);
                });
                fields.next().write_der(self.subject);
                fields.next().write_der(self.public_key);
                fields.next().write_tagged(Tag::context(3), |writer| {
                    writer.write_sequence(|extensions| self.write_extensions(extensions));
                });
            });
        })
    }

    /// Writes the extensions in Go's order.
    fn write_extensions(&self, extensions: &mut DERWriterSeq<'_>) {
        if !self.key_usages.is_empty() {
            write_extension(extensions.next(), KEY_USAGE, true, &named_bits(self.key_usages));
        }
        if !self.purposes.is_empty() {
            let purposes = yasna::construct_der(|writer| {
                writer.write_sequence(|list| self.purposes.iter().for_each(|purpose| write_oid(list.next(), purpose)));
            });
            write_extension(extensions.next(), EXTENDED_KEY_USAGE, false, &purposes);
        }
        let no_authority = yasna::construct_der(|writer| writer.write_sequence(|_| ()));
        write_extension(extensions.next(), BASIC_CONSTRAINTS, true, &no_authority);
        if let Some(id) = self.authority_key_id {
            let id = yasna::construct_der(|writer| {
                writer.write_sequence(|fields| {
                    fields.next().write_tagged_implicit(Tag::context(0), |writer| writer.write_bytes(id));
                });
            });
            write_extension(extensions.next(), AUTHORITY_KEY_ID, false, &id);
        }
        if !self.names.is_empty() {
            let nameless = self.subject == [0x30, 0];
            write_extension(extensions.next(), ALTERNATIVE_NAMES, nameless, self.names);
        }
    }
}

impl Algorithm {
    fn write(self, writer: DERWriter<'_>) {
        writer.write_sequence(|fields| {
            write_oid(fields.next(), self.oid);
            if self.null_parameters {
                fields.next().write_null();
            }
        });
    }

    /// Joins what was signed and its signature.
    pub(super) fn certificate(self, to_be_signed: &[u8], signature: &[u8]) -> Vec<u8> {
        yasna::construct_der(|writer| {
            writer.write_sequence(|fields| {
                fields.next().write_der(to_be_signed);
                self.write(fields.next());
                fields.next().write_bitvec_bytes(signature, signature.len() * 8);
            });
        })
    }
}

fn write_oid(writer: DERWriter<'_>, oid: &[u64]) {
    writer.write_oid(&ObjectIdentifier::from_slice(oid));
}

fn write_extension(writer: DERWriter<'_>, oid: &[u64], critical: bool, value: &[u8]) {
    writer.write_sequence(|fields| {
        write_oid(fields.next(), oid);
        if critical {
            fields.next().write_bool(true);
        }
        fields.next().write_bytes(value);
    });
}

/// Encodes a set of named bits without trailing zeros; bit 0 is the first.
fn named_bits(set: &[u8]) -> Vec<u8> {
    let length = set.iter().max().map_or(0, |last| usize::from(*last) + 1);
    let mut bytes = vec![0_u8; length.div_ceil(8)];
    for bit in set {
        bytes[usize::from(bit / 8)] |= 0x80 >> (bit % 8);
    }
    yasna::construct_der(|writer| writer.write_bitvec_bytes(&bytes, length))
}

/// Writes a time as certificates do: with two digits of the year until 2049.
fn write_time(writer: DERWriter<'_>, at: Timestamp) {
    let utc = at.to_zoned(TimeZone::UTC);
    let (tag, form) =
        if utc.year() < 2050 { (TAG_UTCTIME, "%y%m%d%H%M%SZ") } else { (TAG_GENERALIZEDTIME, "%Y%m%d%H%M%SZ") };
    writer.write_tagged_implicit(tag, |writer| writer.write_bytes(utc.strftime(form).to_string().as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_usage_bits_end_with_the_last_that_is_set() {
        assert_eq!(named_bits(&[0, 2]), [3, 2, 5, 0xa0]);
        assert_eq!(named_bits(&[0, 8]), [3, 3, 7, 0x80, 0x80]);
        assert_eq!(named_bits(&[]), [3, 1, 0]);
    }

    #[test]
    fn times_have_four_digits_of_the_year_from_2050() {
        let written = |text: &str| {
            let at = text.parse().expect("a time");
            yasna::construct_der(|writer| write_time(writer, at))
        };
        assert_eq!(written("2026-01-02T03:04:05Z"), *b"\x17\x0d260102030405Z");
        assert_eq!(written("2050-01-02T03:04:05Z"), *b"\x18\x0f20500102030405Z");
    }
}
