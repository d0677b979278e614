//! Descriptions of fields, where clients rely on reading them: `kubectl explain KIND.metadata`.

/// Fields of `ObjectMeta`. What creationTimestamp begins with is upstream's wording, which is checked for.
const OBJECT_META: &[(&str, &str)] = &[
    ("annotations", "Annotations hold arbitrary text by key. They are for tools and people; no selector sees them."),
    (
        "creationTimestamp",
        "CreationTimestamp is a timestamp of the server's time when this object was created. Read-only, and null for \
         lists.",
    ),
    (
        "deletionGracePeriodSeconds",
        "Seconds this object has, after its deletion was asked for, to end by itself. Read-only, set together with \
         deletionTimestamp.",
    ),
    (
        "deletionTimestamp",
        "DeletionTimestamp is the time at which this object goes at the latest, once its deletion was asked for and \
         no finalizer holds it. Read-only; it cannot be taken back and may only be made earlier.",
    ),
    ("finalizers", "Whatever is in this list must be removed by whoever put it there before the object can go."),
    (
        "generateName",
        "GenerateName is a prefix for a name that the server makes, used where no name is given. The name that came \
         of it is in name.",
    ),
    ("generation", "A number that grows whenever the desired state changes. Read-only."),
    (
        "labels",
        "Labels sort objects by keys and values; selectors, also those of controllers and services, match them.",
    ),
    ("managedFields", "ManagedFields says which manager set which fields, and how. The server keeps it."),
    ("name", "Name is unique among the objects of its kind in a namespace, or in the cluster. It cannot be changed."),
    (
        "namespace",
        "Namespace is where the name is unique; empty for what belongs to the whole cluster. It cannot be changed.",
    ),
    (
        "ownerReferences",
        "The objects this one depends on: when all of them are gone, it is collected. At most one of them is its \
         controller.",
    ),
    (
        "resourceVersion",
        "The version of this object as the server numbers it, to be given back unchanged: a write that carries an old \
         one is refused. Read-only.",
    ),
    ("selfLink", "Not set any more."),
    ("uid", "UID tells objects apart that had the same name one after the other. Read-only."),
];

/// Description of a message's field.
pub(super) fn of(message: &str, field: &str) -> Option<&'static str> {
    if message != "k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta" {
        return None;
    }
    OBJECT_META.iter().find(|(name, _)| *name == field).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;

    #[test]
    fn every_field_of_the_metadata_is_described() {
        let name = "k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta";
        let message = schema::message(name).expect("ObjectMeta");
        let without: Vec<_> = message.fields.iter().filter(|f| of(name, &f.json).is_none()).map(|f| &f.json).collect();
        assert!(without.is_empty(), "{without:?}");
        assert_eq!(message.fields.len(), OBJECT_META.len());
        assert_eq!(of("k8s.io.api.core.v1.Pod", "name"), None);
    }
}
