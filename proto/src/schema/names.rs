//! Lookup of a message's fields by name.
//!
//! HOT: every member of every object that is read is looked up, in each of the passes over it.

/// No field.
const NONE: u16 = u16::MAX;
/// A message with more fields than this is searched by a table.
const FEW: usize = 6;

/// A table of fields by a digest of their names: each is at the place its digest says or, when another is there, behind it.
/// It is at least half empty, so that few are behind another.
pub(super) fn table<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> Box<[u16]> {
    if names.len() <= FEW {
        return Box::default();
    }
    let mut table: Box<[u16]> = vec![NONE; (2 * names.len()).next_power_of_two()].into();
    for (name, index) in names.zip(0..NONE) {
        let free = places(name, table.len()).find(|at| table[*at] == NONE);
        if let Some(at) = free {
            table[at] = index;
        }
    }
    table
}

/// The field of a name; `is` says whether a field has it.
pub(super) fn find(table: &[u16], fields: usize, name: &str, is: impl Fn(usize) -> bool) -> Option<usize> {
    if table.is_empty() {
        return (0..fields).find(|index| is(*index));
    }
    let known = places(name, table.len()).map(|at| table[at]).take_while(|index| *index != NONE);
    known.map(usize::from).find(|index| is(*index))
}

/// Probes for a name in a table whose size is a power of two.
fn places(name: &str, size: usize) -> impl Iterator<Item = usize> {
    let first = digest(name.as_bytes());
    (0..size).map(move |step| (first + step) & (size - 1))
}

/// A few bytes tell the fields of a message apart.
fn digest(name: &[u8]) -> usize {
    let at = |index: usize| name.get(index).copied().map_or(0, usize::from);
    let (size, half) = (name.len(), name.len() / 2);
    let [first, inner, last] = [at(0), at(half), at(size.wrapping_sub(1))];
    let mixed = (size ^ first << 3 ^ inner << 8 ^ last << 13).wrapping_mul(0x9E37_79B9);
    mixed >> 11
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_found_by_its_name_and_no_other() {
        for count in [0, 1, FEW, FEW + 1, 40, 300] {
            let names: Vec<String> = (0..count).map(|n| format!("field{n}")).collect();
            let table = table(names.iter().map(String::as_str));
            let find = |name: &str| find(&table, names.len(), name, |index| names[index] == name);
            for (index, name) in names.iter().enumerate() {
                assert_eq!(find(name), Some(index));
            }
            for other in ["", "f", "field", "field01", "Field1", "fielď1"] {
                assert_eq!(find(other), None, "{other}");
            }
        }
    }

    #[test]
    fn fields_of_built_in_messages_are_where_they_are_looked_for() {
        let pod = crate::schema::kind_of("v1", "Pod").expect("a known kind");
        let spec = pod.field("spec").and_then(|field| field.message()).expect("a message");
        let behind: usize = spec.fields.iter().map(|field| steps(&spec.fields, &field.json)).sum();
        assert!(behind <= spec.fields.len() / 2, "{behind} steps for {} fields", spec.fields.len());
    }

    /// Number of probes that find a field.
    fn steps(fields: &[crate::schema::Field], name: &str) -> usize {
        let table = table(fields.iter().map(|field| &*field.json));
        places(name, table.len()).position(|at| *fields[usize::from(table[at])].json == *name).expect("a known field")
    }
}
