use std::time::Duration;

use super::Queue;

#[tokio::test(start_paused = true)]
async fn an_item_waits_once_and_returns_when_added_while_handled() {
    let queue = Queue::new("test_dedupe");
    queue.add("a");
    queue.add("a");
    queue.add("b");
    assert_eq!(queue.len(), 2);
    assert_eq!(queue.get().await, Some("a"));
    queue.add("a");
    assert_eq!(queue.get().await, Some("b"), "a is being handled and must not be handed out twice");
    queue.done(&"a");
    assert_eq!(queue.get().await, Some("a"));
    queue.done(&"a");
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_earliest_delay_counts() {
    let queue = Queue::new("test_delay");
    let start = tokio::time::Instant::now();
    queue.add_after("a", Duration::from_secs(10));
    queue.add_after("a", Duration::from_secs(2));
    queue.add_after("a", Duration::from_secs(5));
    assert_eq!(queue.get().await, Some("a"));
    assert_eq!(start.elapsed().as_secs(), 2);
    queue.done(&"a");
    let none = tokio::time::timeout(Duration::from_secs(60), queue.get()).await;
    assert!(none.is_err(), "the other delays were merged");
}

#[tokio::test(start_paused = true)]
async fn back_off_doubles_until_forgotten() {
    let queue = Queue::with_backoff("test_backoff", Duration::from_secs(1), Duration::from_secs(4));
    for expected in [1, 2, 4, 4, 0, 1] {
        if expected == 0 {
            queue.forget(&"a");
            continue;
        }
        let start = tokio::time::Instant::now();
        queue.add_rate_limited("a");
        assert_eq!(queue.get().await, Some("a"));
        queue.done(&"a");
        assert_eq!(start.elapsed().as_secs(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_drains_and_wakes_every_worker() {
    let queue = Queue::new("test_shutdown");
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move {
                let mut handled = 0;
                while let Some(item) = queue.get().await {
                    handled += 1;
                    queue.done(&item);
                }
                handled
            })
        })
        .collect();
    for item in 0..10 {
        queue.add(item);
    }
    queue.shut_down();
    queue.add(11);
    let mut handled = 0;
    for worker in workers {
        handled += worker.await.expect("a worker ends");
    }
    assert_eq!(handled, 10);
}

#[tokio::test]
async fn queues_of_one_name_are_measured_as_one() {
    let (one, other) = (Queue::new("test_one_name"), Queue::new("test_one_name"));
    let depth = || crate::metrics::workqueue("test_one_name").depth.get();
    one.add("a");
    one.add("a");
    other.add("b");
    assert_eq!(depth(), 2.0);
    assert_eq!(one.get().await, Some("a"));
    one.add("a");
    assert_eq!(depth(), 2.0, "it waits until it is done");
    assert_eq!(other.get().await, Some("b"));
    one.done(&"a");
    assert_eq!(one.get().await, Some("a"));
    assert_eq!(depth(), 0.0);
}

#[tokio::test(start_paused = true)]
async fn work_in_progress_is_measured_when_somebody_asks() {
    let queues = [(); 2].map(|()| Queue::new("test_in_progress"));
    let shown = || {
        let text = crate::metrics::gather();
        ["unfinished_work", "longest_running_processor"].map(|family| {
            let start = format!("workqueue_{family}_seconds{{name=\"test_in_progress\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
        })
    };
    let seconds = |sum: &str, longest: &str| [sum, longest].map(|text| Some(text.to_owned()));
    for (queue, item) in queues.iter().zip(["a", "b"]) {
        queue.add(item);
        assert_eq!(queue.get().await, Some(item));
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    assert_eq!(shown(), seconds("6", "4"), "queues of one name are one");
    queues[0].done(&"a");
    assert_eq!(shown(), seconds("2", "2"));
    drop(queues);
    assert_eq!(shown(), seconds("0", "0"));
}
