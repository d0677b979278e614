//! SPDY/3.1 framing, as far as exec and attach need it: streams with headers, data, half-close, reset, ping, go-away.
//! A pure codec: bytes in, [`Frame`]s out, and the other way round. There is no flow control, as in the library that
//! kubelets and container runtimes use; TCP's is what holds a fast sender back.

mod dictionary;
#[cfg(test)]
mod tests;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

const VERSION: u16 = 3;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const FLAG_FIN: u8 = 1;
const CONTROL: u32 = 1 << 31;
const HEADER: usize = 8;
/// Longest frame that is accepted; those of container runtimes are far smaller.
const LONGEST: usize = 1 << 20;
/// Longest header block, decompressed.
const LONGEST_HEADERS: usize = 64 << 10;

/// Reasons for which the peer cannot be understood.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SpdyError {
    /// A frame's length is beyond reason.
    #[error("SPDY frame of {0} bytes is too long")]
    TooLong(usize),
    /// Not SPDY/3.
    #[error("SPDY version {0} is not supported")]
    Version(u16),
    /// A frame is shorter than its kind allows.
    #[error("SPDY frame is cut short")]
    Short,
    /// A header block cannot be decompressed.
    #[error("SPDY header block is damaged")]
    Headers,
}

/// Frame of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A new stream.
    Open {
        /// Number of the stream.
        stream: u32,
        /// Headers of the stream.
        headers: Vec<(String, String)>,
        /// The stream is half-closed: no data follows.
        fin: bool,
    },
    /// The answer to a stream of ours.
    Accepted {
        /// Number of the stream.
        stream: u32,
        /// The stream is half-closed: no data follows.
        fin: bool,
    },
    /// Bytes.
    Data {
        /// Of this stream.
        stream: u32,
        /// The bytes.
        bytes: Bytes,
        /// The stream ends with these bytes.
        fin: bool,
    },
    /// The stream is broken off.
    Reset {
        /// Number of the stream.
        stream: u32,
    },
    /// To be sent back as it is.
    Ping(u32),
    /// The connection ends.
    GoAway,
    /// Something that does not concern us: settings, window updates.
    Other,
}

/// Both directions of one connection; header compression has a memory, so one codec belongs to one connection.
pub struct Codec {
    compress: Compress,
    decompress: Decompress,
    dictionary: Vec<u8>,
}

impl Default for Codec {
    fn default() -> Self {
        let dictionary = dictionary::dictionary();
        let mut compress = Compress::new(Compression::default(), true);
        // Only fails on a stream that is in use.
        compress.set_dictionary(&dictionary).ok();
        Self { compress, decompress: Decompress::new(true), dictionary }
    }
}

impl Codec {
    /// Takes one frame off the front of `buffer`; none when it is not complete yet.
    ///
    /// # Errors
    /// The bytes are not SPDY/3; the connection is of no use any more.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, SpdyError> {
        if buffer.len() < HEADER {
            return Ok(None);
        }
        let length = usize::from(buffer[5]) << 16 | usize::from(buffer[6]) << 8 | usize::from(buffer[7]);
        if length > LONGEST {
            return Err(SpdyError::TooLong(length));
        }
        if buffer.len() < HEADER + length {
            buffer.reserve(HEADER + length - buffer.len());
            return Ok(None);
        }
        let mut frame = buffer.split_to(HEADER + length).freeze();
        let first = frame.get_u32();
        let fin = frame.get_u32() >> 24 & u32::from(FLAG_FIN) != 0;
        if first & CONTROL == 0 {
            return Ok(Some(Frame::Data { stream: first, bytes: frame, fin }));
        }
        let [high, low, kind_high, kind_low] = first.to_be_bytes();
        let version = u16::from_be_bytes([high & 0x7f, low]);
        if version != VERSION {
            return Err(SpdyError::Version(version));
        }
        self.control(u16::from_be_bytes([kind_high, kind_low]), frame, fin).map(Some)
    }

    fn control(&mut self, kind: u16, mut body: Bytes, fin: bool) -> Result<Frame, SpdyError> {
        let least = match kind {
            SYN_STREAM => 10,
            SYN_REPLY | PING => 4,
            RST_STREAM => 8,
            GOAWAY => return Ok(Frame::GoAway),
            _ => return Ok(Frame::Other),
        };
        if body.len() < least {
            return Err(SpdyError::Short);
        }
        let number = body.get_u32() & !CONTROL;
        Ok(match kind {
            SYN_STREAM => {
                body.advance(6);
                Frame::Open { stream: number, headers: self.headers(&body)?, fin }
            }
            SYN_REPLY => {
                // The decompressor must see every block, wanted or not.
                self.headers(&body)?;
                Frame::Accepted { stream: number, fin }
            }
            RST_STREAM => Frame::Reset { stream: number },
            _ => Frame::Ping(number),
        })
    }

    fn headers(&mut self, block: &[u8]) -> Result<Vec<(String, String)>, SpdyError> {
        let plain = self.inflate(block)?;
        let mut plain = plain.as_slice();
        let count = take_u32(&mut plain)?;
        let mut headers = Vec::new();
        for _ in 0..count {
            let name = take_text(&mut plain)?;
            // Several values of one name are separated by a zero byte.
            for value in take_text(&mut plain)?.split('\0') {
                headers.push((name.clone(), value.to_owned()));
            }
        }
        Ok(headers)
    }

    fn inflate(&mut self, block: &[u8]) -> Result<Vec<u8>, SpdyError> {
        let mut out: Vec<u8> = Vec::with_capacity(1024);
        let mut input = block;
        loop {
            let before = self.decompress.total_in();
            let outcome = self.decompress.decompress_vec(input, &mut out, FlushDecompress::Sync);
            let consumed = usize::try_from(self.decompress.total_in() - before).map_err(|_| SpdyError::Headers)?;
            input = input.get(consumed..).ok_or(SpdyError::Headers)?;
            match outcome {
                Err(error) if error.needs_dictionary().is_some() => {
                    self.decompress.set_dictionary(&self.dictionary).map_err(|_| SpdyError::Headers)?;
                }
                Err(_) => return Err(SpdyError::Headers),
                Ok(Status::StreamEnd) => return Ok(out),
                Ok(_) if input.is_empty() && out.len() < out.capacity() => return Ok(out),
                Ok(_) if out.len() >= LONGEST_HEADERS => return Err(SpdyError::Headers),
                Ok(_) if out.len() == out.capacity() => out.reserve(out.len().max(1024)),
                Ok(Status::BufError) => return Err(SpdyError::Headers),
                Ok(_) => {}
            }
        }
    }

    /// Opens a stream of ours; numbers of clients are odd and rise.
    ///
    /// # Errors
    /// The headers cannot be compressed, which does not happen.
    pub fn open(&mut self, out: &mut BytesMut, stream: u32, headers: &[(&str, &str)]) -> Result<(), SpdyError> {
        let mut plain = Vec::with_capacity(128);
        put_length(&mut plain, headers.len());
        for (name, value) in headers {
            let name = name.to_ascii_lowercase();
            put_length(&mut plain, name.len());
            plain.extend_from_slice(name.as_bytes());
            put_length(&mut plain, value.len());
            plain.extend_from_slice(value.as_bytes());
        }
        let block = self.deflate(&plain)?;
        put_control(out, SYN_STREAM, 10 + block.len());
        out.put_u32(stream);
        out.put_u32(0);
        out.put_u16(0);
        out.put_slice(&block);
        Ok(())
    }

    fn deflate(&mut self, plain: &[u8]) -> Result<Vec<u8>, SpdyError> {
        let mut out = Vec::with_capacity(plain.len() + 256);
        let before = self.compress.total_in();
        self.compress.compress_vec(plain, &mut out, FlushCompress::Sync).map_err(|_| SpdyError::Headers)?;
        let all = self.compress.total_in() - before == plain.len() as u64;
        if all && out.len() < out.capacity() { Ok(out) } else { Err(SpdyError::Headers) }
    }
}

fn take_u32(bytes: &mut &[u8]) -> Result<u32, SpdyError> {
    if bytes.len() < 4 {
        return Err(SpdyError::Headers);
    }
    Ok(bytes.get_u32())
}

fn take_text(bytes: &mut &[u8]) -> Result<String, SpdyError> {
    let length = take_u32(bytes)? as usize;
    let text = bytes.get(..length).ok_or(SpdyError::Headers)?;
    *bytes = &bytes[length..];
    String::from_utf8(text.to_vec()).map_err(|_| SpdyError::Headers)
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

fn put_control(out: &mut BytesMut, kind: u16, length: usize) {
    out.put_u32(CONTROL | u32::from(VERSION) << 16 | u32::from(kind));
    // Bounded by the headers and the reads that frames are made from: always below 2^24.
    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX) & 0x00ff_ffff);
}

/// Appends a data frame; `fin` says that no more will come.
pub fn put_data(out: &mut BytesMut, stream: u32, bytes: &[u8], fin: bool) {
    out.put_u32(stream & !CONTROL);
    let flags = if fin { u32::from(FLAG_FIN) << 24 } else { 0 };
    out.put_u32(flags | u32::try_from(bytes.len()).unwrap_or(u32::MAX) & 0x00ff_ffff);
    out.put_slice(bytes);
}

/// Appends the answer to a ping.
pub fn put_ping(out: &mut BytesMut, number: u32) {
    put_control(out, PING, 4);
    out.put_u32(number);
}
