use super::*;

fn wanted(name: &str) -> Wanted {
    let name = name.to_owned();
    let device = "gpu0".to_owned();
    Wanted { name, owner: 7, device, weight: 2, memory_bytes: 1 << 20, ..Wanted::default() }
}

/// The registry of a node with one device.
fn open(dir: &Path, limit: usize, memory_bytes: u64) -> io::Result<Registry> {
    Registry::open(dir, limit, vec![home("gpu0", memory_bytes, None)])
}

#[test]
fn what_was_saved_is_there_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut registry = open(dir.path(), 4, 1 << 30).unwrap();
    registry.create(&wanted("a")).unwrap();
    registry.create(&wanted("b")).unwrap();
    let change = Change { weight: Some(9), cap_ppm: Some(250_000), ..Change::default() };
    registry.set("b", &change).unwrap();
    registry.set_user_weight(7, 3).unwrap();
    let session = registry.open_session(1);
    registry.close_session(1, session, 55);
    registry.close_session(1, session, 55);
    let other = registry.open_session(1);
    registry.unsaved().unwrap().unwrap().write().unwrap();
    assert!(registry.unsaved().unwrap().is_none());
    let mut again = open(dir.path(), 4, 1 << 30).unwrap();
    let b = again.find("b").unwrap().clone();
    assert_eq!((b.key, b.weight, b.used_ns, b.cap_ppm), (1, 9, 55, Some(250_000)));
    assert_eq!(again.user(7), User { uid: 7, key: 1, weight: Some(3) });
    assert_eq!(again.user(8).key, 2);
    assert_eq!(again.open_sessions(), [(1, other)]);
    assert!(again.open_session(1) > other, "no number is used twice");
    again.remove("a").unwrap();
    assert_eq!(again.create(&wanted("c")).unwrap().key, 0, "keys stay dense");
}

#[test]
fn what_was_held_adds_up_over_scheduling_cores() {
    let dir = tempfile::tempdir().unwrap();
    let mut registry = open(dir.path(), 4, 1 << 30).unwrap();
    registry.create(&wanted("a")).unwrap();
    let holding = |turns| Holding { held_ns: 10 * turns, turns };
    let total = |registry: &Registry| {
        let vgpu = registry.find("a").unwrap();
        vgpu.held_before.plus(vgpu.held_now)
    };
    assert_eq!(registry.begin_core(|_| Holding::default(), |_| Holding::default()), 1);
    registry.note_holdings(|_| holding(5));
    // Its state on disk is newer than what was noted of it; a new core begins at nothing.
    registry.begin_core(|_| holding(7), |_| Holding::default());
    assert_eq!(total(&registry), holding(7));
    // A core that goes on counts further; what was noted last is not counted twice.
    registry.note_holdings(|_| holding(2));
    registry.begin_core(|_| Holding::default(), |_| holding(3));
    registry.note_holdings(|_| holding(4));
    assert_eq!(total(&registry), holding(7 + 4));
    registry.unsaved().unwrap().unwrap().write().unwrap();
    let again = open(dir.path(), 4, 1 << 30).unwrap();
    assert_eq!((total(&again), again.core()), (holding(11), 3));
}

#[test]
fn an_attach_writes_what_it_changes_and_a_crash_at_any_byte_keeps_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let reopen = || open(dir.path(), 4096, 1 << 30).unwrap();
    let mut registry = reopen();
    for i in 0..400 {
        registry.create(&wanted(&format!("v{i}"))).unwrap();
    }
    registry.unsaved().unwrap().unwrap().write().unwrap();
    let session = registry.open_session(7);
    let opened = registry.unsaved().unwrap().unwrap();
    let Document::Lines { path, bytes } = &opened else { panic!("{opened:?}") };
    assert!(bytes.len() < 1000, "{} bytes for one attach", bytes.len());
    opened.write().unwrap();
    registry.close_session(7, session, 55);
    let closed = registry.unsaved().unwrap().unwrap();
    let Document::Lines { bytes: last, .. } = &closed else { panic!("{closed:?}") };
    let whole = [bytes.as_slice(), last].concat();
    for cut in bytes.len()..whole.len() - 1 {
        std::fs::write(path, &whole[..cut]).unwrap();
        assert_eq!(reopen().open_sessions(), [(7, session)], "cut at {cut}");
    }
    std::fs::write(path, &whole).unwrap();
    let mut again = reopen();
    assert_eq!((again.by_key(7).unwrap().used_ns, again.open_sessions().len()), (55, 0));
    // What it reads it writes anew, and lines of the file before say nothing about that.
    again.remove("v1").unwrap();
    let document = again.unsaved().unwrap().unwrap();
    document.write().unwrap();
    std::fs::write(path, &whole).unwrap();
    let last = reopen();
    assert!(matches!(last.find("v1"), Err(RegistryError::Unknown(_))));
    assert_eq!(last.by_key(7).unwrap().used_ns, 55);
}

#[test]
fn the_file_of_changes_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let mut registry = open(dir.path(), 4096, 1 << 30).unwrap();
    registry.create(&wanted("a")).unwrap();
    let (mut longest, mut written) = (0, 0);
    for _ in 0..5000 {
        let session = registry.open_session(0);
        registry.close_session(0, session, 1);
        let document = registry.unsaved().unwrap().unwrap();
        match &document {
            Document::Lines { bytes, .. } => {
                longest = longest.max(registry.lines_bytes + bytes.len());
            }
            Document::Whole { .. } => written += 1,
        }
    }
    assert!(longest < 2 * LINES_BYTES_MIN && (2..200).contains(&written), "{longest} {written}");
}

#[test]
fn another_user_and_a_wrong_token_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut registry = open(dir.path(), 4, 1 << 30).unwrap();
    registry.create(&Wanted { token: "open".to_owned(), ..wanted("a") }).unwrap();
    assert!(matches!(registry.admit("a", 8, "open"), Err(RegistryError::Owner(_))));
    assert!(matches!(registry.admit("a", 7, ""), Err(RegistryError::Token(_))));
    registry.admit("a", 7, "open").unwrap();
}

#[test]
fn the_name_of_a_users_own_vgpu_is_that_users() {
    let dir = tempfile::tempdir().unwrap();
    let mut registry = open(dir.path(), 8, 1 << 30).unwrap();
    let error = registry.create(&wanted("user-8")).unwrap_err();
    assert!(matches!(error, RegistryError::Reserved { uid: 8, .. }), "{error}");
    for name in ["user-7", "user-08", "user-x", "user-99999999999"] {
        registry.create(&wanted(name)).unwrap();
    }
    // One that an earlier version let a user take goes on under another name.
    registry.unsaved().unwrap().unwrap().write().unwrap();
    let path = dir.path().join("vgpus.json");
    let text = std::fs::read_to_string(&path).unwrap().replace("user-7", "user-6");
    replace(&path, text.as_bytes()).unwrap();
    let again = open(dir.path(), 8, 1 << 30).unwrap();
    assert!(matches!(again.find("user-6"), Err(RegistryError::Unknown(_))));
    assert_eq!(again.find("user-6.7.1").unwrap().owner, 7);
}

#[test]
fn the_vgpus_of_one_tenant_leave_room_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut registry = open(dir.path(), 16, 1 << 30).unwrap();
    let mut fill = |tenant: u32| {
        let mut count = 0;
        while registry.has_room_beside(count) {
            // A tenant's vGPUs may be different users'.
            let owner = 100 * tenant + u32::try_from(count).unwrap();
            registry.create(&Wanted { owner, ..wanted(&format!("of-{owner}")) }).unwrap();
            count += 1;
        }
        count
    };
    let counts: Vec<usize> = (1..=6).map(&mut fill).collect();
    assert_eq!(counts, [8, 4, 2, 1, 1, 0], "each leaves as much as it takes");
}

#[test]
fn what_is_out_of_range_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut registry = open(dir.path(), 1, 1 << 30).unwrap();
    for name in ["", ".a", "-a", "a/b", "a b", &"x".repeat(65)] {
        assert!(matches!(registry.create(&wanted(name)), Err(RegistryError::Name(_))));
    }
    for weight in [0, 10_001] {
        let bad = Wanted { weight, ..wanted("a") };
        assert!(matches!(registry.create(&bad), Err(RegistryError::Weight(_))));
    }
    registry.create(&wanted("a")).unwrap();
    assert!(matches!(registry.create(&wanted("a")), Err(RegistryError::Exists(_))));
    assert!(matches!(registry.create(&wanted("b")), Err(RegistryError::Full(1))));
    let large = Change { memory_bytes: Some(2 << 30), ..Change::default() };
    assert!(matches!(registry.set("a", &large), Err(RegistryError::Memory(..))));
    for ppm in [0, PPM + 1] {
        let bad = Change { cap_ppm: Some(ppm), ..Change::default() };
        assert!(matches!(registry.set("a", &bad), Err(RegistryError::Cap(_))));
    }
    assert!(registry.set_user_weight(7, 0).is_err());
}

#[test]
fn a_broken_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("vgpus.json"), "{").unwrap();
    let error = open(dir.path(), 1, 1).unwrap_err().to_string();
    assert!(error.contains("vgpus.json"), "{error}");
}

#[test]
fn a_vgpu_goes_where_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let devices = vec![home("small", 1 << 20, None), home("large", 1 << 30, None)];
    let mut registry = Registry::open(dir.path(), 8, devices).unwrap();
    assert_eq!(registry.roomiest("", 1 << 20), "small");
    assert_eq!(registry.roomiest("", 1 << 21), "large", "the small one has less memory");
    assert_eq!(registry.roomiest("", 1 << 40), "large", "where none has so much, to the largest");
    let on = |device: &str, name: &str, weight| Wanted {
        device: device.to_owned(),
        weight,
        ..wanted(name)
    };
    registry.create(&on("small", "a", 3)).unwrap();
    assert_eq!(registry.roomiest("", 1 << 20), "large", "nobody has anything there");
    registry.create(&on("large", "b", 4)).unwrap();
    assert_eq!(registry.roomiest("", 1 << 20), "small", "less weight is there");
    let error = registry.create(&on("none", "c", 1)).unwrap_err().to_string();
    assert!(error.contains("`none`") && error.contains("small, large"), "{error}");
    let change = Change { memory_bytes: Some(1 << 21), ..Change::default() };
    assert!(matches!(registry.set("a", &change), Err(RegistryError::Memory(_, 0x10_0000))));
    registry.set("b", &change).unwrap();
}

#[test]
fn a_vgpu_of_a_time_with_one_device_gets_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut registry = open(dir.path(), 4, 1 << 30).unwrap();
    registry.create(&wanted("a")).unwrap();
    registry.unsaved().unwrap().unwrap().write().unwrap();
    let file = dir.path().join("vgpus.json");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(r#""device":"gpu0","#, "")).unwrap();
    let _ = std::fs::remove_file(dir.path().join("vgpus.log"));
    assert_eq!(open(dir.path(), 4, 1 << 30).unwrap().find("a").unwrap().device, "gpu0");
}

#[test]
fn a_vgpu_of_a_pool_goes_to_a_device_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Some("train");
    let devices =
        vec![home("a", 1 << 30, None), home("b", 1 << 20, pool), home("c", 1 << 20, pool)];
    let mut registry = Registry::open(dir.path(), 8, devices).unwrap();
    assert_eq!(registry.roomiest("train", 1 << 10), "b");
    registry.create(&Wanted { device: "b".to_owned(), ..wanted("x") }).unwrap();
    assert_eq!(registry.roomiest("train", 1 << 10), "c", "less weight is there");
    assert_eq!(registry.roomiest("train", 1 << 30), "c", "the pool, though it has not so much");
    assert_eq!(registry.roomiest("c", 1 << 10), "c");
    assert_eq!(registry.roomiest("trian", 1 << 10), "trian", "which is refused by name");
    let wrong = Wanted { device: "trian".to_owned(), ..wanted("y") };
    let error = registry.create(&wrong).unwrap_err().to_string();
    assert!(error.contains("trian") && error.contains("a, b, c, train"), "{error}");
}

#[test]
fn a_device_out_of_service_is_left_for_one_of_its_kind_and_pool() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Some("train");
    let gpu = Home { kind: "cuda", ..home("gpu", 1 << 30, pool) };
    let devices = vec![
        home("a", 1 << 30, pool),
        home("b", 1 << 12, pool),
        home("c", 1 << 30, None),
        home("d", 1 << 30, pool),
        gpu,
    ];
    let mut registry = Registry::open(dir.path(), 8, devices).unwrap();
    let vgpu =
        |name: &str| Wanted { device: "a".to_owned(), memory_bytes: 1 << 20, ..wanted(name) };
    registry.create(&vgpu("x")).unwrap();
    registry.set_outage("a", Some(Outage::Withdrawn));
    assert_eq!(registry.refuge_of(registry.find("x").unwrap()).as_deref(), Some("d"));
    let refused = registry.create(&vgpu("y")).unwrap_err().to_string();
    assert!(refused.contains("weft device up a"), "{refused}");
    let counted = Holding { held_ns: 7, turns: 2 };
    registry.move_vgpu("x", "d".to_owned(), counted);
    let moved = registry.find("x").unwrap();
    assert_eq!((moved.device.as_str(), moved.held_before), ("d", counted));
    registry.set_outage("d", Some(Outage::Withdrawn));
    assert_eq!(registry.refuge_of(registry.find("x").unwrap()), None, "b is too small");
    registry.set_outage("a", None);
    assert_eq!(registry.refuge_of(registry.find("x").unwrap()).as_deref(), Some("a"));
}

fn home(name: &str, memory_bytes: u64, pool: Option<&str>) -> Home {
    let (name, pool) = (name.to_owned(), pool.map(str::to_owned));
    Home { name, kind: "soft", memory_bytes, pool }
}
