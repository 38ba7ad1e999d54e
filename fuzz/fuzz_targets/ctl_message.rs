#![no_main]

libfuzzer_sys::fuzz_target!(
    init: {
        if let Err(why) = rocebud_fuzz_bodies::place::enter() {
            eprintln!("no network namespace of our own ({why}): the daemon's part is left out");
        }
    },
    |data: &[u8]| rocebud_fuzz_bodies::ctl_message::run(data)
);
