//! Notes that plugins keep for themselves during one cycle. Answers for upstream's `CycleState`.

use std::any::Any;
use std::fmt;

/// A note: anything that can be copied for a what-if.
pub trait Note: Any + Send + Sync {
    /// A deep copy.
    fn copy(&self) -> Box<dyn Note>;
    /// For reading back.
    fn any(&self) -> &dyn Any;
    /// For changing.
    fn any_mut(&mut self) -> &mut dyn Any;
}

impl<T: Any + Clone + Send + Sync> Note for T {
    fn copy(&self) -> Box<dyn Note> {
        Box::new(self.clone())
    }

    fn any(&self) -> &dyn Any {
        self
    }

    fn any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// Notes by type (each plugin has its own type), and the plugins that asked to be skipped.
#[derive(Default)]
pub struct CycleState {
    notes: Vec<Box<dyn Note>>,
    /// Plugins whose Filter (and pod additions and removals) is skipped.
    pub skip_filter: Vec<&'static str>,
    /// Plugins whose Score is skipped.
    pub skip_score: Vec<&'static str>,
    /// Plugins are timed one by one in this cycle.
    pub sampled: bool,
    /// Every filter that is left looks at the pod's demand and the node alone, so that its answers may be kept.
    pub node_only: bool,
}

impl CycleState {
    /// Nothing noted yet.
    pub fn new(sampled: bool) -> Self {
        Self { sampled, ..Self::default() }
    }

    /// Reads a note.
    pub fn get<T: Note>(&self) -> Option<&T> {
        self.notes.iter().find_map(|n| (**n).any().downcast_ref())
    }

    /// Changes a note.
    pub fn get_mut<T: Note>(&mut self) -> Option<&mut T> {
        self.notes.iter_mut().find_map(|n| (**n).any_mut().downcast_mut())
    }

    /// Writes a note in place of an earlier one of its type.
    pub fn put<T: Note>(&mut self, note: T) {
        match self.get_mut::<T>() {
            Some(old) => *old = note,
            None => self.notes.push(Box::new(note)),
        }
    }
}

impl Clone for CycleState {
    fn clone(&self) -> Self {
        Self {
            notes: self.notes.iter().map(|n| (**n).copy()).collect(),
            skip_filter: self.skip_filter.clone(),
            skip_score: self.skip_score.clone(),
            sampled: self.sampled,
            node_only: self.node_only,
        }
    }
}

impl fmt::Debug for CycleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CycleState").field("notes", &self.notes.len()).field("skip_filter", &self.skip_filter).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_kept_by_type_and_copied_deeply() {
        let mut state = CycleState::default();
        state.put(1_u8);
        state.put(2_u8);
        state.put("x".to_owned());
        let copy = state.clone();
        *state.get_mut::<u8>().expect("u8") = 9;
        assert_eq!((copy.get::<u8>(), state.get::<u8>()), (Some(&2), Some(&9)));
        assert_eq!(copy.get::<String>().map(String::as_str), Some("x"));
        assert!(copy.get::<u64>().is_none());
    }
}
