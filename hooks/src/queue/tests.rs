use super::*;

#[test]
fn what_is_not_there_is_an_error_value() {
    let queue = ActivationQueue::<i32>::unbounded();
    assert!(matches!(queue.pop("blocks.0.hook_k"), Err(QueueError::Absent { nearest, .. }) if nearest.is_empty()));
    queue.push("blocks.0.hook_k", 1).unwrap();
    assert!(
        matches!(queue.pop("blocks.1.hook_k"), Err(QueueError::Absent { nearest, .. }) if nearest == ["blocks.0.hook_k"])
    );
    assert_eq!(queue.pop("blocks.0.hook_k"), Ok(1));
    assert_eq!(queue.pop("blocks.0.hook_k"), Err(QueueError::Empty { name: "blocks.0.hook_k".into() }));
    assert_eq!(queue.q_size("blocks.0.hook_k"), Some(0));
    queue.clear("blocks.0.hook_k").unwrap();
    assert_eq!(queue.q_size("blocks.0.hook_k"), None);
}

#[test]
fn single_values_have_defaults() {
    let queue = ActivationQueue::<i32>::unbounded();
    assert_eq!(queue.get("mean", 7), 7);
    queue.set("mean", 3);
    assert_eq!((queue.get("mean", 7), queue.q_size("mean")), (Stored::Value(3), None));
    queue.clear_all();
    assert_eq!(queue.get("mean", 7), 7);
}

#[test]
fn a_name_holds_a_queue_or_a_value() {
    let queue = ActivationQueue::<i32>::unbounded();
    (1..4).try_for_each(|n| queue.push("n", n)).unwrap();
    assert_eq!(queue.get("n", 9), Stored::Queue(vec![1, 2, 3]));
    queue.set("n", 7);
    assert_eq!((queue.get("n", 9), queue.q_size("n")), (Stored::Value(7), None));
    let rejected = queue.push("n", 8).unwrap_err();
    assert_eq!((rejected.value, rejected.error), (8, QueueError::NoQueue { name: "n".into() }));
    assert_eq!(queue.wait("n"), Err(QueueError::NoQueue { name: "n".into() }));
    queue.set("mean", 3);
    assert!(matches!(queue.clear("meen"), Err(QueueError::Absent { nearest, .. }) if nearest == ["mean"]));
}

#[test]
fn a_full_queue_gives_the_value_back() {
    let queue = ActivationQueue::<i32>::bounded(1, WhenFull::Refuse);
    queue.push("n", 1).unwrap();
    let Rejected { value, error } = queue.push("n", 2).unwrap_err();
    assert_eq!((value, error), (2, QueueError::Full { name: "n".into(), limit: 1 }));
    queue.push("other", 2).unwrap();
    queue.close();
    assert_eq!(queue.push("n", 3).unwrap_err().error, QueueError::Closed { name: "n".into() });
    assert_eq!((queue.wait("n"), queue.wait("n")), (Ok(1), Err(QueueError::Closed { name: "n".into() })));
}

#[test]
fn threads_meet_in_order() {
    let queue = ActivationQueue::<i32>::bounded(3, WhenFull::Block);
    let reader = queue.clone();
    let read = std::thread::spawn(move || std::iter::from_fn(|| reader.wait("n").ok()).collect::<Vec<i32>>());
    (0..100).try_for_each(|n| queue.push("n", n)).unwrap();
    queue.close();
    assert_eq!(read.join().unwrap(), (0..100).collect::<Vec<_>>());
    // Closing the queue wakes a writer that waits for room.
    let full = ActivationQueue::<i32>::bounded(1, WhenFull::Block);
    full.push("n", 1).unwrap();
    let writer = full.clone();
    let waiting = std::thread::spawn(move || writer.push("n", 2));
    full.close();
    assert!(waiting.join().unwrap().is_err());
}
