//! Bodies that are packed: taken out before they are read, and packed again as they were.

use std::io::{self, Write as _};
use std::mem;

use flate2::write::{DeflateEncoder, GzEncoder, MultiGzDecoder};
use flate2::{Compression, Decompress, FlushDecompress, Status};

/// Length and magic number of a gzip header.
const HEAD: (usize, [u8; 2]) = (10, [0x1f, 0x8b]);

/// Initial size of the decompression buffer, in bytes.
const ROOM: usize = 16 << 10;

/// Compression of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Gzip,
    Deflate,
}

impl Packing {
    /// From `Content-Encoding`; `None` for what nobody here can unpack.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "gzip" => Some(Self::Gzip),
            "deflate" => Some(Self::Deflate),
            _ => None,
        }
    }
}

/// Takes out.
pub(super) enum Unpack {
    /// `head`: what came of it.
    Gzip { decoder: Box<MultiGzDecoder<Vec<u8>>>, head: Vec<u8> },
    /// `ended`: what follows is nobody's business.
    Deflate { inflate: Decompress, ended: bool },
}

impl Unpack {
    pub(super) fn new(packing: Packing) -> Self {
        match packing {
            Packing::Gzip => Self::Gzip { decoder: Box::new(MultiGzDecoder::new(Vec::new())), head: Vec::new() },
            Packing::Deflate => Self::Deflate { inflate: Decompress::new(false), ended: false },
        }
    }

    /// Reports whether nothing was read yet.
    pub(super) fn is_untouched(&self) -> bool {
        matches!(self, Self::Gzip { head, .. } if head.is_empty())
    }

    /// Reports whether no gzip header has been read.
    pub(super) fn is_headless(&self) -> bool {
        matches!(self, Self::Gzip { head, .. } if head.len() < HEAD.0 || !head.starts_with(&HEAD.1))
    }

    pub(super) fn push(&mut self, part: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Self::Gzip { decoder, head } => {
                let (more, part) = part.split_at(part.len().min(HEAD.0 - head.len()));
                head.extend_from_slice(more);
                if head.len() < HEAD.0 {
                    return Ok(Vec::new());
                }
                if !head.starts_with(&HEAD.1) {
                    return Err(io::Error::other("gzip: invalid header"));
                }
                let begins = if more.is_empty() { &[][..] } else { head.as_slice() };
                let written = decoder.write_all(begins).and_then(|()| decoder.write_all(part));
                // What is a stream is to be heard as it comes.
                let written = written.and_then(|()| decoder.flush());
                written.map_err(|_| io::Error::other("gzip: invalid checksum"))?;
                Ok(mem::take(decoder.get_mut()))
            }
            Self::Deflate { inflate, ended } => inflated(inflate, ended, part),
        }
    }

    pub(super) fn finish(&mut self) -> io::Result<Vec<u8>> {
        let early = || io::Error::other("unexpected EOF");
        match self {
            Self::Gzip { head, .. } if head.is_empty() => Err(io::Error::other("EOF")),
            Self::Gzip { head, .. } if head.len() < HEAD.0 => Err(early()),
            Self::Gzip { decoder, .. } => {
                decoder.try_finish().map_err(|_| early())?;
                Ok(mem::take(decoder.get_mut()))
            }
            Self::Deflate { ended: true, .. } => Ok(Vec::new()),
            Self::Deflate { .. } => Err(early()),
        }
    }
}

fn inflated(inflate: &mut Decompress, ended: &mut bool, mut part: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    while !*ended {
        out.reserve(ROOM);
        let before = inflate.total_in();
        let status = inflate.decompress_vec(part, &mut out, FlushDecompress::None);
        let status = status.map_err(|_| io::Error::other("flate: corrupt input"))?;
        let taken = usize::try_from(inflate.total_in() - before).unwrap_or(part.len());
        part = &part[taken..];
        *ended = status == Status::StreamEnd;
        // There may be more to say as long as what there was room for was said.
        if part.is_empty() && out.len() < out.capacity() {
            break;
        }
    }
    Ok(out)
}

/// Packs again.
pub(super) enum Pack {
    Gzip(GzEncoder<Vec<u8>>),
    Deflate(DeflateEncoder<Vec<u8>>),
}

impl Pack {
    pub(super) fn new(packing: Packing) -> Self {
        match packing {
            Packing::Gzip => Self::Gzip(GzEncoder::new(Vec::new(), Compression::default())),
            Packing::Deflate => Self::Deflate(DeflateEncoder::new(Vec::new(), Compression::best())),
        }
    }

    pub(super) fn push(&mut self, part: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Self::Gzip(encoder) => encoder.write_all(part).map(|()| mem::take(encoder.get_mut())),
            Self::Deflate(encoder) => encoder.write_all(part).map(|()| mem::take(encoder.get_mut())),
        }
    }

    pub(super) fn finish(&mut self) -> io::Result<Vec<u8>> {
        match self {
            Self::Gzip(encoder) => encoder.try_finish().map(|()| mem::take(encoder.get_mut())),
            Self::Deflate(encoder) => encoder.try_finish().map(|()| mem::take(encoder.get_mut())),
        }
    }
}
