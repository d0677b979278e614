//! Samples of what the threads of this program do: whenever they have used so much of the processor's time, one of them is
//! interrupted and its stack written down. Nothing is there while nobody looks, but for the handler of the signal once
//! somebody did.

#![allow(unsafe_code, reason = "signal handlers and registers are read by unsafe calls")]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

/// The processor's time between two samples.
pub(super) const PERIOD: Duration = Duration::from_millis(10);
/// Frames of a stack; the outermost ones of deeper stacks are left out.
const DEEPEST: usize = 96;
/// Words for all samples. Their pages are taken as they are written to; what finds no room is not counted.
const ROOM: usize = 1 << 20;
/// Frames between the unwinder and what was interrupted: the handler, and what the system returns to from it.
const OWN_FRAMES: usize = 2;

/// Somebody samples.
static TAKEN: AtomicBool = AtomicBool::new(false);
/// Log of samples, or null.
static LOG: AtomicPtr<Log> = AtomicPtr::new(ptr::null_mut());
/// Handlers at work, on any thread.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// For each sample the number of its frames and their addresses, one after another.
struct Log {
    words: Vec<AtomicUsize>,
    next: AtomicUsize,
}

impl Log {
    fn new() -> Self {
        // Zeroed memory of the system, which nothing has touched.
        let words = std::mem::ManuallyDrop::new(vec![0_usize; ROOM]);
        // SAFETY: the vector is not used any more, and an atomic word has the layout of a word.
        let words = unsafe { Vec::from_raw_parts(words.as_ptr().cast_mut().cast(), words.len(), words.capacity()) };
        Self { words, next: AtomicUsize::new(0) }
    }

    fn add(&self, frames: &[usize]) {
        let at = self.next.fetch_add(frames.len() + 1, Ordering::Relaxed);
        if let Some(place) = self.words.get(at..at + frames.len() + 1) {
            place[0].store(frames.len(), Ordering::Relaxed);
            for (word, frame) in place[1..].iter().zip(frames) {
                word.store(*frame, Ordering::Relaxed);
            }
        }
    }

    /// Stacks, innermost frame first, and how often each was met.
    fn stacks(&self) -> BTreeMap<Vec<usize>, u64> {
        let (mut stacks, mut rest) = (BTreeMap::new(), &self.words[..]);
        while let Some((count, more)) = rest.split_first() {
            let Some((frames, more)) = more.split_at_checked(count.load(Ordering::Relaxed)) else { break };
            if frames.is_empty() {
                break;
            }
            let frames = frames.iter().map(|frame| frame.load(Ordering::Relaxed)).collect();
            *stacks.entry(frames).or_default() += 1;
            rest = more;
        }
        stacks
    }
}

/// Errors of beginning to sample.
#[derive(Debug, thiserror::Error)]
pub(super) enum SamplingError {
    /// Somebody else samples.
    #[error("cpu profiling already in use")]
    InUse,
    /// The system gave no timer.
    #[error(transparent)]
    Timer(#[from] std::io::Error),
}

/// Samples are taken until this is dropped.
pub(super) struct Sampling(*mut Log);

// SAFETY: the log is only written to through atomic words.
unsafe impl Send for Sampling {}

impl Sampling {
    /// Begins.
    pub(super) fn start() -> Result<Self, SamplingError> {
        if TAKEN.swap(true, Ordering::SeqCst) {
            return Err(SamplingError::InUse);
        }
        let log = Box::into_raw(Box::new(Log::new()));
        LOG.store(log, Ordering::SeqCst);
        let sampling = Self(log);
        handle();
        match interrupt_every(PERIOD) {
            Ok(()) => Ok(sampling),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends: stacks, innermost frame first, and how often each was met.
    pub(super) fn finish(self) -> BTreeMap<Vec<usize>, u64> {
        self.stop();
        // SAFETY: it is there until this is dropped.
        unsafe { &*self.0 }.stacks()
    }

    fn stop(&self) {
        let _ = interrupt_every(Duration::ZERO);
        LOG.store(ptr::null_mut(), Ordering::SeqCst);
        // Handlers that found the log before it was taken away are through in no time.
        while INSIDE.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        self.stop();
        // SAFETY: made by Box::into_raw, and nobody has it any more.
        drop(unsafe { Box::from_raw(self.0) });
        TAKEN.store(false, Ordering::SeqCst);
    }
}

/// Has the signal handled, from now on for ever: one that is late must not end the program.
fn handle() {
    // SAFETY: all of it is plain data for which zeroes are a value; the handler does what one may do.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = sample as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGPROF, &raw const action, ptr::null_mut());
        // The unwinder gets ready outside of the handler.
        let mut unread = Frames::default();
        _Unwind_Backtrace(frame, (&raw mut unread).cast());
    }
}

fn interrupt_every(period: Duration) -> std::io::Result<()> {
    let time = libc::timeval { tv_sec: 0, tv_usec: period.subsec_micros().into() };
    let timer = libc::itimerval { it_interval: time, it_value: time };
    // SAFETY: the timer is read and nothing is written.
    let code = unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, ptr::null_mut()) };
    if code == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

struct Frames {
    addresses: [usize; DEEPEST],
    count: usize,
    own: usize,
}

impl Default for Frames {
    fn default() -> Self {
        Self { addresses: [0; DEEPEST], count: 0, own: OWN_FRAMES }
    }
}

/// The handler. It takes no memory and no lock: the unwinder of this C library finds its tables without one.
extern "C" fn sample(_signal: c_int) {
    INSIDE.fetch_add(1, Ordering::SeqCst);
    let log = LOG.load(Ordering::SeqCst);
    if !log.is_null() {
        let mut frames = Frames::default();
        // SAFETY: the callback gets what is handed over here; the log is there as long as somebody is inside.
        unsafe {
            _Unwind_Backtrace(frame, (&raw mut frames).cast());
            (*log).add(&frames.addresses[..frames.count]);
        }
    }
    INSIDE.fetch_sub(1, Ordering::SeqCst);
}

const GO_ON: c_int = 0;
const END_OF_STACK: c_int = 5;

extern "C" fn frame(context: *mut c_void, frames: *mut c_void) -> c_int {
    // SAFETY: see `sample`.
    let frames = unsafe { &mut *frames.cast::<Frames>() };
    let mut exact: c_int = 0;
    // SAFETY: the context is the unwinder's own.
    let address = unsafe { _Unwind_GetIPInfo(context, &raw mut exact) };
    if frames.own > 0 {
        frames.own -= 1;
        return GO_ON;
    }
    if frames.count == DEEPEST || address == 0 {
        return END_OF_STACK;
    }
    // Where a call returns to may be another function already; the byte before it is the call's.
    frames.addresses[frames.count] = if exact == 0 { address - 1 } else { address };
    frames.count += 1;
    GO_ON
}

unsafe extern "C" {
    fn _Unwind_Backtrace(callback: extern "C" fn(*mut c_void, *mut c_void) -> c_int, argument: *mut c_void) -> c_int;
    fn _Unwind_GetIPInfo(context: *mut c_void, before: *mut c_int) -> usize;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_add_up_while_there_is_room() {
        let log = Log::new();
        for frames in [&[1, 2][..], &[3], &[1, 2]] {
            log.add(frames);
        }
        assert_eq!(log.stacks(), BTreeMap::from([(vec![1, 2], 2), (vec![3], 1)]));
        log.next.store(ROOM - 2, Ordering::Relaxed);
        log.add(&[4, 5]);
        log.add(&[6]);
        assert_eq!(log.stacks().len(), 2);
    }
}
