//! A hostile tenant in a real cluster: it has `admin` and every verb on every resource of its own namespace, and an
//! operator who installs what it asks for. After each attack another tenant's Deployment rolls out, the new pod becomes
//! the Service's endpoint and answers through the node port, no component has restarted and none has grown past its limit.

#![allow(clippy::panic, reason = "a test panics to say what is wrong")]

mod attacks;
mod bystander;
mod client;
mod vitals;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use attacks::Attack;
use bystander::Bystander;
use client::Arena;
use e2e::testing::Cluster;
use vitals::Vitals;

#[test]
fn no_attack_of_a_tenant_reaches_its_neighbours() {
    let cluster = Cluster::start(&["--nodes", "1"]);
    cluster.load("busybox");
    let arena = Arena::prepare(&cluster);
    let mut bystander = Bystander::move_in(&arena);
    let mut vitals = Vitals::of(&cluster);
    let wanted = std::env::var("ATTACK").unwrap_or_default();
    let attacks = attacks::all(!wanted.is_empty()).into_iter().filter(|attack| attack.name.contains(&wanted));
    let attacks: Vec<Attack> = attacks.collect();
    assert!(attacks.len() >= 60 || !wanted.is_empty(), "{} attacks", attacks.len());
    let mut failed = Vec::new();
    for attack in attacks {
        let outcome = catch_unwind(AssertUnwindSafe(|| against(&attack, &arena, &mut bystander, &mut vitals)));
        if outcome.is_err() {
            failed.push(attack.name);
        }
        arena.clean_up();
    }
    assert!(failed.is_empty(), "{} attacks had an effect, see above: {failed:#?}", failed.len());
    cluster.stop();
}

/// Attacks and then looks at the neighbour and the components; panics when one of them suffered.
fn against(attack: &Attack, arena: &Arena, bystander: &mut Bystander, vitals: &mut Vitals) {
    vitals.begin();
    let began = Instant::now();
    let answered = catch_unwind(AssertUnwindSafe(|| (attack.run)(arena)));
    let took = began.elapsed().as_secs_f32();
    let rolled_out = bystander.rolls_out(arena, &attack.name).as_secs_f32();
    let memory = vitals.check(&attack.name);
    eprintln!("{took:>5.1} s, neighbours after {rolled_out:>4.1} s: {} [{memory}]", attack.name);
    if let Err(panic) = answered {
        resume_unwind(panic);
    }
}
