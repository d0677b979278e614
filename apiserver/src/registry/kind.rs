//! Definition of a built-in kind: all that is particular about it, in one value.
//!
//! A kind is a file, `registry/<group>/<kind>.rs`, with a `static KIND`, and a line in `kinds`. What it does not say it
//! has as plain kinds have it.

use proto::Value;
use proto::merge::apply::Ownable;
use shared::status::field::Path;

use super::gated_fields::{GatedDefaults, GatedFields, UngatedRule};
use super::life_cycle::LifeCycle;
use super::selectable::{LabelError, Selectable};
use super::strategy::{PLAIN, Strategy};
use crate::machinery::GroupResource;
use crate::printers::Cells;
use crate::rules::options::{KeptOption, Warnings};
use crate::validation::kind_rules::KindRules;
use crate::validation::pod_template::PodTemplate;
use crate::validation::strict_addresses::AddressRules;

/// Warnings about an object; second is what it is changed from.
pub(crate) type Warn = fn(&Value, Option<&Value>, &mut Warnings);

/// Fields that managers can own through a subresource, or the main resource; `None` as the strategy says.
pub(crate) type Ownership = fn(subresource: &str) -> Option<Ownable>;

/// Converts an object, of the `apiVersion` it says, to another group and version. Its `apiVersion` is set afterwards.
pub(crate) type Convert = fn(object: &mut Value, group: &str, version: &str);

/// Administrative access that a write through a subresource requests, beside the stored object.
pub(crate) type AdminAccess = fn(subresource: &str, object: &Value, old: Option<&Value>) -> Option<Path>;

/// A built-in kind: all that is particular about it.
pub(crate) struct KindDefinition {
    pub(crate) resource: GroupResource<'static>,
    pub(crate) life_cycle: LifeCycle,
    pub(crate) strategy: Strategy,
    pub(crate) rules: Option<KindRules>,
    pub(crate) keeps: &'static [KeptOption],
    pub(crate) addresses: Option<AddressRules>,
    pub(crate) admin_access: Option<AdminAccess>,
    pub(crate) pod_template: Option<PodTemplate>,
    pub(crate) gated: &'static [GatedFields],
    pub(crate) rule_without: Option<(&'static str, UngatedRule)>,
    pub(crate) defaults_with: Option<(&'static str, GatedDefaults)>,
    pub(crate) warns: Option<Warn>,
    pub(crate) warns_of_status: Option<Warn>,
    pub(crate) ownership: Option<Ownership>,
    pub(crate) converts: Option<Convert>,
    pub(crate) number_annotation: Option<&'static str>,
    pub(crate) cells: Option<Cells>,
    pub(crate) selectable: &'static [Selectable],
    pub(crate) label_alias: Option<fn(&str) -> &str>,
    pub(crate) label_error: Option<LabelError>,
    pub(crate) hides_namespace_label: bool,
    pub(crate) question: bool,
}

impl KindDefinition {
    /// A plain kind.
    pub(crate) const fn new(resource: GroupResource<'static>) -> Self {
        Self {
            resource,
            life_cycle: LifeCycle::new(),
            strategy: PLAIN,
            rules: None,
            keeps: &[],
            addresses: None,
            admin_access: None,
            pod_template: None,
            gated: &[],
            rule_without: None,
            defaults_with: None,
            warns: None,
            warns_of_status: None,
            ownership: None,
            converts: None,
            number_annotation: None,
            cells: None,
            selectable: &[],
            label_alias: None,
            label_error: None,
            hides_namespace_label: false,
            question: false,
        }
    }

    /// Sets gates and releases of the kind's versions.
    pub(crate) const fn life_cycle(mut self, life_cycle: LifeCycle) -> Self {
        self.life_cycle = life_cycle;
        self
    }

    /// Sets the strategy of writes.
    pub(crate) const fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Sets the validation rules.
    pub(crate) const fn rules(mut self, rules: KindRules) -> Self {
        self.rules = Some(rules);
        self
    }

    /// Sets the rules that stay relaxed for stored objects which rely on that.
    pub(crate) const fn keeps(mut self, kept: &'static [KeptOption]) -> Self {
        self.keeps = kept;
        self
    }

    /// Sets the addresses that `StrictIPCIDRValidation` is about.
    pub(crate) const fn addresses(mut self, rules: AddressRules) -> Self {
        self.addresses = Some(rules);
        self
    }

    /// Sets the search for administrative access to devices.
    pub(crate) const fn admin_access(mut self, requested: AdminAccess) -> Self {
        self.admin_access = Some(requested);
        self
    }

    /// Says where the template of a pod is: the rules, gates and plugins for pods hold for it.
    pub(crate) const fn describes_pods(mut self, keys: &'static [&'static str]) -> Self {
        self.pod_template = Some(PodTemplate::at(keys));
        self
    }

    /// Sets the fields that go with feature gates, besides those of pods.
    pub(crate) const fn gated(mut self, fields: &'static [GatedFields]) -> Self {
        self.gated = fields;
        self
    }

    /// Sets a rule for updates where a gate is disabled.
    pub(crate) const fn rule_without(mut self, gate: &'static str, rule: UngatedRule) -> Self {
        self.rule_without = Some((gate, rule));
        self
    }

    /// Sets defaults that are filled in before an object is stored where a gate is enabled.
    pub(crate) const fn defaults_with(mut self, gate: &'static str, defaults: GatedDefaults) -> Self {
        self.defaults_with = Some((gate, defaults));
        self
    }

    /// Sets the warnings about objects that are accepted.
    pub(crate) const fn warns(mut self, warns: Warn) -> Self {
        self.warns = Some(warns);
        self
    }

    /// Sets the warnings about a write of `status`.
    pub(crate) const fn warns_of_status(mut self, warns: Warn) -> Self {
        self.warns_of_status = Some(warns);
        self
    }

    /// Sets the fields that managers can own, where the strategy does not say.
    pub(crate) const fn ownership(mut self, ownership: Ownership) -> Self {
        self.ownership = Some(ownership);
        self
    }

    /// Sets the conversion between versions that differ in more than `apiVersion`.
    pub(crate) const fn converts(mut self, converts: Convert) -> Self {
        self.converts = Some(converts);
        self
    }

    /// Sets the annotation that has to be a number, because it was a field once.
    pub(crate) const fn number_annotation(mut self, key: &'static str) -> Self {
        self.number_annotation = Some(key);
        self
    }

    /// Sets the cells of tables.
    pub(crate) const fn cells(mut self, cells: Cells) -> Self {
        self.cells = Some(cells);
        self
    }

    /// Sets the selectable fields beyond name and namespace.
    pub(crate) const fn selectable(mut self, fields: &'static [Selectable]) -> Self {
        self.selectable = fields;
        self
    }

    /// Sets other names of selectable fields.
    pub(crate) const fn label_alias(mut self, alias: fn(&str) -> &str) -> Self {
        self.label_alias = Some(alias);
        self
    }

    /// Sets the text for field labels that are not known.
    pub(crate) const fn label_error(mut self, error: LabelError) -> Self {
        self.label_error = Some(error);
        self
    }

    /// Leaves `metadata.namespace` out of the selectable fields.
    pub(crate) const fn hides_namespace_label(mut self) -> Self {
        self.hides_namespace_label = true;
        self
    }

    /// Marks a kind whose objects are questions: they are answered, change nothing and are not stored.
    pub(crate) const fn question(mut self) -> Self {
        self.question = true;
        self
    }
}
