//! Channels of `v5.channel.k8s.io`: their numbers, and the messages of clients that carry them. In: the bytes of a
//! WebSocket message. Out: what they mean. Never: a connection. Answers for upstream's
//! `apimachinery/pkg/util/remotecommand`.

pub(super) const STDIN: u8 = 0;
pub(super) const STDOUT: u8 = 1;
pub(super) const STDERR: u8 = 2;
pub(super) const ERROR: u8 = 3;
pub(super) const RESIZE: u8 = 4;
const CHANNELS: u8 = 5;
pub(super) const CLOSE: u8 = 255;

/// Content of a client's message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChannelMessage<'a> {
    /// Bytes of a channel.
    Bytes(u8, &'a [u8]),
    /// The last bytes of a channel were said.
    Last(u8),
    /// An ignored message.
    Nothing,
    /// Not in the protocol.
    Wrong,
}

impl<'a> ChannelMessage<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        match bytes {
            [CLOSE, channel] if *channel < CHANNELS => Self::Last(*channel),
            [CLOSE, ..] => Self::Wrong,
            [channel, bytes @ ..] => Self::Bytes(*channel, bytes),
            [] => Self::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_for_channels() {
        for (bytes, want) in [
            (&[STDIN, 1, 2][..], ChannelMessage::Bytes(STDIN, &[1, 2])),
            (&[9, 1], ChannelMessage::Bytes(9, &[1])),
            (&[CLOSE, STDIN], ChannelMessage::Last(STDIN)),
            (&[CLOSE], ChannelMessage::Wrong),
            (&[CLOSE, STDIN, 0], ChannelMessage::Wrong),
            (&[CLOSE, CHANNELS], ChannelMessage::Wrong),
            (&[], ChannelMessage::Nothing),
        ] {
            assert_eq!(ChannelMessage::of(bytes), want, "{bytes:?}");
        }
    }
}
