use crate::Program;
use alloc::string::ToString;

fn error(text: &str) -> alloc::string::String {
    Program::assemble(text).expect_err(text).to_string()
}

/// PROTOCOL 10.18. Every error of an author, with its location and message.
#[test]
fn errors_name_line_column_and_what_was_expected() {
    for (text, expected) in [
        ("", "line 1, column 1: the program has no instruction"),
        ("; nothing\n\n", "line 2, column 1: the program has no instruction"),
        ("frob r1, r2\nret", "line 1, column 1: there is no instruction `frob`"),
        ("  ld3 r1, window[0]\nret", "line 1, column 3: there is no instruction `ld3`"),
        ("jxx r1, r2, a\na: ret", "line 1, column 1: there is no instruction `jxx`"),
        ("ld832 r1, window[0]\nret", "line 1, column 1: there is no instruction `ld832`"),
        ("mov r11, 1\nret", "line 1, column 5: expected a register, r0 to r10, found `r11`"),
        ("mov r01, 1\nret", "line 1, column 5: expected a register, r0 to r10, found `r01`"),
        ("mov 1, r1\nret", "line 1, column 5: expected a register, r0 to r10, found 1"),
        ("mov\nret", "line 1, column 4: expected a register, r0 to r10, found the end of the line"),
        ("mov r1 r2\nret", "line 1, column 8: expected `,`, found `r2`"),
        ("mov r1, \nret", "line 1, column 9: expected a number or a name, found the end of the line"),
        ("mov r1, r2, r3\nret", "line 1, column 11: expected the end of the line, found `,`"),
        ("ret ret", "line 1, column 5: expected the end of the line, found `ret`"),
        (
            "mov r1, KEY\nret",
            "line 1, column 9: `KEY` is not defined; `.def KEY VALUE` must stand above its use",
        ),
        (
            "mov r1, 0x8000_0000\nret",
            "line 1, column 9: 2147483648 does not fit an immediate of 32 bits; load it with `lddw` first",
        ),
        (
            "mov32 r1, 0x1_0000_0000\nret",
            "line 1, column 11: 4294967296 does not fit an immediate of 32 bits; load it with `lddw` first",
        ),
        (
            "lddw r1, 0x1_0000_0000_0000_0000\nret",
            "line 1, column 10: 18446744073709551616 does not fit 64 bits",
        ),
        (
            "lddw r1, r2\nret",
            "line 1, column 10: `r2` is not defined; `.def r2 VALUE` must stand above its use",
        ),
        ("mov r1, 12q\nret", "line 1, column 9: `12q` is not a number"),
        ("mov r1, 0x\nret", "line 1, column 9: `0x` is not a number"),
        (
            "mov r1, 999999999999999999999999999999999999999999\nret",
            "line 1, column 9: `999999999999999999999999999999999999999999` is not a number",
        ),
        (
            ".def BIG 0xffff_ffff_ffff_ffff_ffff\n.def MORE BIG * BIG\nret",
            "line 2, column 15: the number is too large",
        ),
        ("mov r1, $5\nret", "line 1, column 9: `$` has no meaning here"),
        ("mov r1, é\nret", "line 1, column 9: `é` has no meaning here"),
        ("ret ; é é\n  ret $", "line 2, column 7: `$` has no meaning here"),
        ("[r1]\nret", "line 1, column 1: expected an instruction or a directive, found `[`"),
        ("ld8 r1, r2\nret", "line 1, column 9: expected `window[...]`, `scratch[...]` or `spill[...]`"),
        ("ld8 r1, window\nret", "line 1, column 15: expected `[`, found the end of the line"),
        ("ld8 r1, window[0\nret", "line 1, column 17: expected `]`, found the end of the line"),
        ("ld8 r1, window[r2 8]\nret", "line 1, column 19: expected `+`, `-` or `]`, found 8"),
        (
            "ld8 r1, window[8 + r2]\nret",
            "line 1, column 20: `r2` is not defined; `.def r2 VALUE` must stand above its use",
        ),
        ("ld8 r1, window[40000]\nret", "line 1, column 16: an offset of 40000 does not fit 16 bits"),
        (
            ".window 64\nld8 r1, window[60]\nret",
            "line 2, column 1: 8 bytes at 60 leave the load window, which has 64",
        ),
        ("ld8 r1, window[250]\nret", "line 1, column 1: 8 bytes at 250 leave the load window, which has 256"),
        ("ld8 r1, window[-1]\nret", "line 1, column 1: 8 bytes at -1 leave the load window, which has 8"),
        ("st8 scratch[0], r1\nret", "line 1, column 1: 8 bytes at 0 leave the scratch pad, which has 0"),
        ("ld8 r1, spill[121]\nret", "line 1, column 1: 8 bytes at 121 leave the spill area, which has 128"),
        (
            "mov r1, 1\n  st8 window[0], r1\nret",
            "line 2, column 3: the window is read-only in a program that does not declare `.stores`",
        ),
        (
            ".stores\n.window 64\nst8 window[60], r1\nret",
            "line 3, column 1: 8 bytes at 60 leave the load window, which has 64",
        ),
        (".stores\n.stores\nret", "line 2, column 1: `.stores` is already declared"),
        (".stores 8\nret", "line 1, column 9: expected the end of the line, found 8"),
        (
            "ld8 r1, window[r2]\nret",
            "line 1, column 1: the reach of an indexed access is not known; declare it with `.window`",
        ),
        ("rank3 r1, window[0], 4, r2\nret", "line 1, column 1: there is no instruction `rank3`"),
        (
            "rank8 r1, scratch[0], 4, r2\nret",
            "line 1, column 11: an array that is searched lies at a constant place in the window",
        ),
        (
            "match8 r1, window[r3], 4, r2\nret",
            "line 1, column 12: an array that is searched lies at a constant place in the window",
        ),
        ("rank8 r1, window[0], 65, r2\nret", "line 1, column 22: expected 1 to 64 elements, found 65"),
        ("rank8 r1, window[0], 4, 7\nret", "line 1, column 25: expected a register, r0 to r10, found 7"),
        (
            "rank8 r1, window[8], 32, r2\nret",
            "line 1, column 1: 256 bytes at 8 leave the load window, which has 256",
        ),
        ("jmp nowhere\nret", "line 1, column 5: label `nowhere` is not defined"),
        ("jmp 5\nret", "line 1, column 5: expected a label, found 5"),
        ("jeq r1, 0\nret", "line 1, column 10: expected `,`, found the end of the line"),
        ("a: mov r1, 1\njmp a\nret", "line 2, column 5: jumps go forward only, and label `a` is on line 1"),
        ("a: jmp a\nret", "line 1, column 8: jumps go forward only, and label `a` is on line 1"),
        ("jmp a\nret\na:", "line 1, column 5: label `a` has no instruction behind it"),
        ("a: mov r1, 1\n  a: ret", "line 2, column 3: label `a` is already on line 1"),
        ("mov r1, 1", "line 1, column 1: the last instruction must be `next` or `ret`"),
        (
            "lddw r1, 1\nadd r1, 1\n  jeq r1, 1, a\na: mov r1, 1",
            "line 4, column 4: the last instruction must be `next` or `ret`",
        ),
        (".window 0\nret", "line 1, column 9: expected 1 to 256 bytes, found 0"),
        (".window 257\nret", "line 1, column 9: expected 1 to 256 bytes, found 257"),
        (".scratch 4033\nret", "line 1, column 10: expected 0 to 4032 bytes, found 4033"),
        (".scratch -1\nret", "line 1, column 10: expected 0 to 4032 bytes, found -1"),
        (".window\nret", "line 1, column 8: expected a number or a name, found the end of the line"),
        (".window 8\n.window 8\nret", "line 2, column 1: `.window` is already declared"),
        (".scratch 8\n.scratch 8\nret", "line 2, column 1: `.scratch` is already declared"),
        (
            ".size 8\nret",
            "line 1, column 1: expected `.window`, `.scratch`, `.stores` or `.def`, found `.size`",
        ),
        (".def r1 5\nret", "line 1, column 6: `r1` is a register or an area, not a new name"),
        (".def spill 5\nret", "line 1, column 6: `spill` is a register or an area, not a new name"),
        (".def 5 5\nret", "line 1, column 6: expected a name, found 5"),
        (".def A 5\n.def A 6\nret", "line 2, column 6: `A` is already defined"),
        (".def A 5 6\nret", "line 1, column 10: expected the end of the line, found 6"),
    ] {
        assert_eq!(error(text), expected, "{text:?}");
    }
}

#[test]
fn a_text_longer_than_a_program_is_refused_where_it_gets_too_long() {
    let mut text = "mov r1, 1\n".repeat(511);
    assert!(Program::assemble(&(text.clone() + "ret")).is_ok());
    text.push_str("ret\nret\n");
    assert_eq!(error(&text), "line 513, column 1: a program has at most 512 slots");
    let constants = "lddw r1, 1\n".repeat(256);
    assert_eq!(error(&(constants + "ret")), "line 257, column 1: a program has at most 512 slots");
}

fn encoded(text: &str) -> alloc::vec::Vec<u8> {
    Program::assemble(text).unwrap_or_else(|error| panic!("{text:?}: {error}")).encoded().into()
}

/// Alternative spellings have the same meaning.
#[test]
fn the_same_program_in_other_words() {
    for (one, other) in [
        ("mov r1, 16\nret", "mov r1,0x10;sixteen\r\nret"),
        ("mov r1, 16\nret", ".def A 4\n.def B A * A\nmov r1, B\nret"),
        ("mov r1, -6\nret", ".def A 2\nmov r1, -A - 2 * 2\nret"),
        ("mov r1, 5\nret", "mov r1, 2 - -3\nret"),
        ("mov r1, -6\nret", "mov r1, 2 * -3\nret"),
        ("mov r1, 5\nret", "mov r1, 0b1_01\n\tret"),
        ("mov32 r1, -1\nret", "mov32 r1, 0xffffffff\nret"),
        ("st4 spill[0], -1\nret", "st4 spill[0], 0xffff_ffff\nret"),
        ("lddw r1, -2\nret", "lddw r1, 0xffff_ffff_ffff_fffe\nret"),
        ("jmp a\na: b: ret", "jmp b\na:\n\n; here\nb:\nret"),
        (".window 64\nld8 r1, window[r2 + 40]\nret", ".window 64\nld8 r1, window[r2 + 8 + 4*8]\nret"),
        (".window 64\nld8 r1, window[r2 - 8]\nret", ".window 64\nld8 r1, window[r2-12+4]\nret"),
        (".window 64\nld8 r1, window[r2]\nret", "ld8 r1, window[r2 + 0]\nret\n.window 64"),
        ("mov r1, 1\nret", ".def next 1\nmov r1, next\nret"),
    ] {
        assert_eq!(encoded(one), encoded(other), "{one:?} and {other:?}");
    }
}

/// PROTOCOL 10.19: one LOAD, as far as the program reads (PULSE 4.1).
#[test]
fn the_window_is_inferred() {
    for (text, window_len) in [
        ("ret", 1),
        ("ld1 r1, window[0]\nret", 1),
        ("ld8 r1, window[16]\nld4 r2, window[0]\nret", 24),
        ("ld8 r1, window[248]\nret", 256),
        (".window 64\nld8 r1, window[16]\nret", 64),
        (".scratch 4032\nld8 r1, scratch[4024]\nret", 1),
        ("ld1 r1, window[0]\nrank4 r1, window[4], 15, r1\nret", 64),
        (".stores\nst8 window[40], 1\nret", 48),
    ] {
        assert_eq!(Program::assemble(text).expect(text).window_len(), window_len, "{text}");
    }
}

#[test]
fn the_disassembly_reads_like_the_text() {
    let text = "\
.window 24
.scratch 16
.stores
    ld8 r2, window[16]
    ld4 r3, window[r2 - 4]
    lddw r4, 0x1ffffffff
    jsgt32 r3, -1, L6
    st2 scratch[r1 + 2], r4
    st8 spill[0], 7
L6:
    not32 r2
    match2 r4, window[3], 7, r2
    jmp L9
L9:
    next r2
";
    let program = Program::assemble(text).expect("assembles");
    assert_eq!(program.disassemble(), text);
}
