//! Pods that are placed by managers that record what they are asked.

use super::machine::NumaNode;
use super::*;
use parking_lot::Mutex;
use serde_json::json;

/// A manager whose hints are given, and that notes what it is asked.
#[derive(Default)]
struct Fake {
    hints: Vec<Hint>,
    /// Container that cannot be given what it asks for.
    fails: &'static str,
    calls: Mutex<Vec<String>>,
}

fn mask(nodes: &[u32]) -> NodeMask {
    nodes.iter().copied().collect()
}

impl Fake {
    fn note(&self, call: String) {
        self.calls.lock().push(call);
    }

    fn told(&self) -> Hints {
        Hints::from([("resource".to_owned(), Some(self.hints.clone()))])
    }
}

#[async_trait]
impl HintProvider for Fake {
    fn hints(&self, _: &Pod, container: &Container) -> Hints {
        self.note(format!("hints {}", container.name));
        self.told()
    }

    fn pod_hints(&self, _: &Pod) -> Hints {
        self.note("hints of the pod".to_owned());
        self.told()
    }

    async fn allocate(&self, _: &Pod, container: &Container, hint: Hint) -> Result<(), Refusal> {
        let nodes: Vec<u32> = hint.affinity.iter().flat_map(|mask| mask.nodes()).collect();
        self.note(format!("allocate {} {nodes:?}", container.name));
        if container.name == self.fails { Err(Refusal::unexpected("no")) } else { Ok(()) }
    }

    fn release(&self, uid: &str) {
        self.note(format!("release {uid}"));
    }
}

fn machine(count: u32) -> NumaNodes {
    let node = |id| (id, NumaNode { distances: vec![10; count as usize], ..NumaNode::default() });
    NumaNodes((0..count).map(node).collect())
}

fn config(policy: &str, scope: &str, options: &[(&str, &str)]) -> TopologyConfig {
    let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    TopologyConfig { policy: policy.to_owned(), scope: scope.to_owned(), options }
}

fn pod() -> Pod {
    let spec = json!({"initContainers": [{"name": "init"}], "containers": [{"name": "app"}]});
    serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u"}, "spec": spec})).expect("a pod")
}

async fn admit(policy: &str, scope: &str, fake: &Fake) -> (Result<(), Refusal>, Vec<String>) {
    let manager = TopologyManager::new(&config(policy, scope, &[]), &machine(2)).expect("a manager");
    let outcome = manager.admit(&pod(), &[fake]).await;
    (outcome, std::mem::take(&mut *fake.calls.lock()))
}

#[tokio::test]
async fn containers_are_placed_one_by_one_or_the_pod_as_a_whole() {
    let hint = Hint { affinity: Some(mask(&[1])), preferred: true };
    let fake = Fake { hints: vec![hint], ..Fake::default() };
    for (policy, scope, expected) in [
        ("none", "container", &["allocate init []", "allocate app []"][..]),
        ("restricted", "container", &["hints init", "allocate init [1]", "hints app", "allocate app [1]"]),
        ("single-numa-node", "pod", &["hints of the pod", "allocate init [1]", "allocate app [1]"]),
    ] {
        let (outcome, calls) = admit(policy, scope, &fake).await;
        assert_eq!((outcome, calls), (Ok(()), expected.iter().map(|call| (*call).to_owned()).collect()), "{policy}");
    }
}

#[tokio::test]
async fn pods_that_cannot_be_placed_are_refused_and_keep_nothing() {
    let wide = Fake { hints: vec![Hint { affinity: Some(mask(&[0, 1])), preferred: false }], ..Fake::default() };
    let refusal = Refusal {
        reason: "TopologyAffinityError",
        message: "Resources cannot be allocated with Topology locality".to_owned(),
    };
    for (policy, is_admitted) in [("best-effort", true), ("restricted", false), ("single-numa-node", false)] {
        let (outcome, calls) = admit(policy, "container", &wide).await;
        assert_eq!(outcome, if is_admitted { Ok(()) } else { Err(refusal.clone()) }, "{policy}");
        assert_eq!(calls.last().is_some_and(|call| call == "release u"), !is_admitted, "{policy}: {calls:?}");
    }
    let fake = Fake { fails: "app", ..Fake::default() };
    let (outcome, calls) = admit("none", "container", &fake).await;
    assert_eq!(outcome, Err(Refusal::unexpected("no")));
    assert_eq!(calls, ["allocate init []", "allocate app []", "release u"]);
}

#[test]
fn settings_are_known_and_suit_the_machine() {
    let failure = |config: TopologyConfig, nodes: u32| {
        TopologyManager::new(&config, &machine(nodes)).err().map(|error| error.to_string())
    };
    let none: [(&str, &str); 0] = [];
    for (config, nodes, expected) in [
        (config("none", "magic", &[("magic", "1")]), 9, None),
        (config("restricted", "pod", &[("prefer-closest-numa-nodes", "true")]), 8, None),
        (config("restricted", "pod", &[("max-allowable-numa-nodes", "9")]), 9, None),
        (config("magic", "pod", &none), 1, Some("unknown policy: \"magic\"")),
        (config("restricted", "magic", &none), 1, Some("unknown scope: \"magic\"")),
        (config("restricted", "pod", &none), 9, Some("unsupported on machines with more than 8 NUMA Nodes")),
        (config("restricted", "pod", &[("magic", "1")]), 1, Some("unknown Topology Manager Policy option: \"magic\"")),
        (
            config("restricted", "pod", &[("prefer-closest-numa-nodes", "maybe")]),
            1,
            Some(
                "bad value for option \"prefer-closest-numa-nodes\": strconv.ParseBool: parsing \"maybe\": invalid syntax",
            ),
        ),
        (
            config("restricted", "pod", &[("max-allowable-numa-nodes", "7")]),
            1,
            Some("the minimum value of \"max-allowable-numa-nodes\" should not be less than 8"),
        ),
        (
            config("restricted", "pod", &[("max-allowable-numa-nodes", "x")]),
            1,
            Some(
                "unable to convert policy option to integer \"max-allowable-numa-nodes\": strconv.Atoi: parsing \"x\": \
                 invalid syntax",
            ),
        ),
        (
            config("restricted", "pod", &[("max-allowable-numa-nodes", "99999999999999999999")]),
            1,
            Some(
                "unable to convert policy option to integer \"max-allowable-numa-nodes\": strconv.Atoi: parsing \
                 \"99999999999999999999\": value out of range",
            ),
        ),
    ] {
        assert_eq!(failure(config.clone(), nodes).as_deref(), expected, "{config:?}");
    }
}
