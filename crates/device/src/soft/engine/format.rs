//! One conversion of C's `printf`.

/// Widest field and longest precision: what programs use, and no more memory than that.
const FIELD_MAX: usize = 4096;

/// A conversion, `%-5.2f` say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Conversion {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
    /// Bits of an integer argument.
    bits: u32,
    letter: u8,
}

impl Conversion {
    /// Reads what stands behind a `%`; with the bytes that it takes. `None` if it is none.
    pub(super) fn parse(text: &[u8]) -> Option<(Self, usize)> {
        let mut read = Self { bits: 32, ..Self::default() };
        let mut at = 0;
        while let Some(flag) = text.get(at) {
            match flag {
                b'-' => read.left = true,
                b'+' => read.plus = true,
                b' ' => read.space = true,
                b'#' => read.alternate = true,
                b'0' => read.zero = true,
                _ => break,
            }
            at += 1;
        }
        read.width = number(text, &mut at);
        if text.get(at) == Some(&b'.') {
            at += 1;
            read.precision = Some(number(text, &mut at));
        }
        while let Some(length) = text.get(at) {
            match length {
                b'h' => read.bits = (read.bits / 2).max(8),
                b'l' | b'z' | b'j' | b't' => read.bits = 64,
                _ => break,
            }
            at += 1;
        }
        read.letter = *text.get(at)?;
        b"diuxXocspeEfFgGaA%".contains(&read.letter).then_some((read, at + 1))
    }

    /// Bytes of the argument, which lies aligned to them; 0 for `%%`.
    pub(super) fn argument_bytes(&self) -> u64 {
        match self.letter {
            b'%' => 0,
            b'c' => 4,
            b'd' | b'i' | b'u' | b'x' | b'X' | b'o' if self.bits < 64 => 4,
            _ => 8,
        }
    }

    /// The text of an argument; `string` reads that of `%s`.
    pub(super) fn text(&self, value: u64, string: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
        match self.letter {
            b'%' => b"%".to_vec(),
            b'c' => self.padded(b"", &[value as u8], false),
            b's' => {
                let mut bytes = if value == 0 { b"(null)".to_vec() } else { string() };
                bytes.truncate(self.precision.unwrap_or(usize::MAX));
                self.padded(b"", &bytes, false)
            }
            b'p' if value == 0 => self.padded(b"", b"(nil)", false),
            b'p' => self.padded(b"", format!("{value:#x}").as_bytes(), false),
            b'd' | b'i' => {
                let shift = 64 - self.bits;
                let value = (value << shift).cast_signed() >> shift;
                self.integer(self.sign(value < 0), value.unsigned_abs().to_string())
            }
            b'u' | b'x' | b'X' | b'o' => self.unsigned(value & (u64::MAX >> (64 - self.bits))),
            _ => self.float(f64::from_bits(value)),
        }
    }

    fn sign(&self, negative: bool) -> &'static str {
        match (negative, self.plus, self.space) {
            (true, ..) => "-",
            (_, true, _) => "+",
            (.., true) => " ",
            _ => "",
        }
    }

    fn unsigned(&self, value: u64) -> Vec<u8> {
        let prefixed = self.alternate && value != 0;
        match self.letter {
            b'x' => self.integer(if prefixed { "0x" } else { "" }, format!("{value:x}")),
            b'X' => self.integer(if prefixed { "0X" } else { "" }, format!("{value:X}")),
            b'o' => {
                let digits = format!("{value:o}");
                let digits = if prefixed { format!("0{digits}") } else { digits };
                self.integer("", digits)
            }
            _ => self.integer("", value.to_string()),
        }
    }

    /// An integer's digits, as many as the precision says.
    fn integer(&self, prefix: &str, digits: String) -> Vec<u8> {
        let Some(precision) = self.precision else {
            return self.padded(prefix.as_bytes(), digits.as_bytes(), self.zero);
        };
        let digits = if digits == "0" && precision == 0 { String::new() } else { digits };
        let zeros = "0".repeat(precision.saturating_sub(digits.len()));
        self.padded(prefix.as_bytes(), format!("{zeros}{digits}").as_bytes(), false)
    }

    fn float(&self, value: f64) -> Vec<u8> {
        let sign = self.sign(value.is_sign_negative());
        let size = value.abs();
        let precision = self.precision.unwrap_or(6);
        let text = match self.letter.to_ascii_lowercase() {
            _ if value.is_nan() => "nan".to_owned(),
            _ if value.is_infinite() => "inf".to_owned(),
            b'e' => self.exponential(size, precision),
            b'f' => self.fixed(size, precision),
            b'a' => hexadecimal(size, self.precision, self.alternate),
            _ => self.shortest(size, precision.max(1)),
        };
        let text = if self.letter.is_ascii_uppercase() { text.to_ascii_uppercase() } else { text };
        let (prefix, digits) = match text.get(..2) {
            Some("0x" | "0X") => (format!("{sign}{}", &text[..2]), &text[2..]),
            _ => (sign.to_owned(), text.as_str()),
        };
        self.padded(prefix.as_bytes(), digits.as_bytes(), self.zero && value.is_finite())
    }

    fn fixed(&self, size: f64, precision: usize) -> String {
        let point = if precision == 0 && self.alternate { "." } else { "" };
        format!("{size:.precision$}{point}")
    }

    fn exponential(&self, size: f64, precision: usize) -> String {
        let text = format!("{size:.precision$e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let point = if precision == 0 && self.alternate { "." } else { "" };
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}{point}e{sign}{:02}", exponent.unsigned_abs())
    }

    /// `%g`: fixed or exponential, without zeros at the end.
    fn shortest(&self, size: f64, precision: usize) -> String {
        let text = format!("{size:.*e}", precision - 1);
        let exponent = text.split_once('e').and_then(|(_, e)| e.parse::<i64>().ok()).unwrap_or(0);
        let digits = precision as i64;
        if (-4..digits).contains(&exponent) {
            let behind = usize::try_from(digits - 1 - exponent).unwrap_or(0);
            let text = self.fixed(size, behind);
            return if self.alternate { text } else { trimmed(&text).to_owned() };
        }
        let text = self.exponential(size, precision - 1);
        match text.split_once('e') {
            Some((digits, exponent)) if !self.alternate => {
                format!("{}e{exponent}", trimmed(digits))
            }
            _ => text,
        }
    }

    /// Fills up to the width: zeros go between the prefix and the digits.
    fn padded(&self, prefix: &[u8], body: &[u8], zeros: bool) -> Vec<u8> {
        let room = self.width.saturating_sub(prefix.len() + body.len());
        let fill = |byte: u8, wanted: bool| vec![byte; if wanted { room } else { 0 }];
        let zeros = zeros && !self.left;
        [
            &fill(b' ', !self.left && !zeros)[..],
            prefix,
            &fill(b'0', zeros)[..],
            body,
            &fill(b' ', self.left)[..],
        ]
        .concat()
    }
}

/// A number in decimal, limited; 0 if there is none.
fn number(text: &[u8], at: &mut usize) -> usize {
    let mut value = 0usize;
    while let Some(digit) = text.get(*at).filter(|c| c.is_ascii_digit()) {
        value = (value * 10 + usize::from(digit - b'0')).min(FIELD_MAX);
        *at += 1;
    }
    value
}

/// Without zeros behind the point, and without a point that nothing follows.
fn trimmed(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// `%a` of a finite number that is not negative.
fn hexadecimal(size: f64, precision: Option<usize>, alternate: bool) -> String {
    const FRACTION_BITS: u32 = 52;
    let bits = size.to_bits();
    let field = (bits >> FRACTION_BITS) as i32;
    let fraction = bits & ((1 << FRACTION_BITS) - 1);
    let (mut mant, exponent) = match (field, fraction) {
        (0, 0) => (0, 0),
        (0, _) => (fraction, -1022),
        _ => (fraction | 1 << FRACTION_BITS, field - 1023),
    };
    let digits = precision.unwrap_or(13);
    if digits < 13 {
        let dropped = 4 * (13 - digits as u32);
        let half = 1u64 << (dropped - 1);
        let (kept, rest) = (mant >> dropped, mant & ((1 << dropped) - 1));
        let up = rest > half || (rest == half && kept & 1 != 0);
        mant = (kept + u64::from(up)) << dropped;
    }
    let behind = format!("{:013x}", mant & ((1 << FRACTION_BITS) - 1));
    let behind = match precision {
        Some(digits) if digits <= 13 => behind[..digits].to_owned(),
        Some(digits) => format!("{behind:0<digits$}"),
        None => behind.trim_end_matches('0').to_owned(),
    };
    let point = if behind.is_empty() && !alternate { "" } else { "." };
    format!("0x{}{point}{behind}p{exponent:+}", mant >> FRACTION_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int(format: &str, value: i64) -> String {
        convert(format, value.cast_unsigned())
    }

    fn float(format: &str, value: f64) -> String {
        convert(format, value.to_bits())
    }

    fn convert(format: &str, value: u64) -> String {
        let (conversion, used) = Conversion::parse(format.as_bytes()).unwrap();
        assert_eq!(used, format.len(), "{format}");
        String::from_utf8(conversion.text(value, || b"text".to_vec())).unwrap()
    }

    const INTEGERS: &[(&str, i64, &str)] = &[
        ("d", 0, "0"),
        ("d", -7, "-7"),
        ("d", 255, "255"),
        ("5d", 7, "    7"),
        ("5d", 123_456, "123456"),
        ("-5d", 0, "0    "),
        ("-5d", -7, "-7   "),
        ("-5d", 255, "255  "),
        ("05d", 7, "00007"),
        ("05d", 123_456, "123456"),
        ("+d", 0, "+0"),
        ("+d", -7, "-7"),
        ("+d", 255, "+255"),
        (" d", 7, " 7"),
        (" d", 123_456, " 123456"),
        (".3d", 0, "000"),
        (".3d", -7, "-007"),
        (".3d", 255, "255"),
        ("8.3d", 7, "     007"),
        ("8.3d", 123_456, "  123456"),
        ("-8.3d", 0, "000     "),
        ("-8.3d", -7, "-007    "),
        ("-8.3d", 255, "255     "),
        ("08.3d", 7, "     007"),
        ("08.3d", 123_456, "  123456"),
        (".0d", 0, ""),
        (".0d", -7, "-7"),
        (".0d", 255, "255"),
        ("hd", 7, "7"),
        ("hd", 123_456, "-7616"),
        ("hhd", 0, "0"),
        ("hhd", -7, "-7"),
        ("hhd", 255, "-1"),
        ("u", 7, "7"),
        ("u", 123_456, "123456"),
        ("x", 0, "0"),
        ("x", -7, "fffffff9"),
        ("x", 255, "ff"),
        ("#x", 7, "0x7"),
        ("#x", 123_456, "0x1e240"),
        ("#10x", 0, "         0"),
        ("#10x", -7, "0xfffffff9"),
        ("#10x", 255, "      0xff"),
        ("#010x", 7, "0x00000007"),
        ("#010x", 123_456, "0x0001e240"),
        ("X", 0, "0"),
        ("X", -7, "FFFFFFF9"),
        ("X", 255, "FF"),
        ("#X", 7, "0X7"),
        ("#X", 123_456, "0X1E240"),
        ("o", 0, "0"),
        ("o", -7, "37777777771"),
        ("o", 255, "377"),
        ("#o", 7, "07"),
        ("#o", 123_456, "0361100"),
        (".5x", 0, "00000"),
        (".5x", -7, "fffffff9"),
        (".5x", 255, "000ff"),
        ("hu", 7, "7"),
        ("hu", 123_456, "57920"),
    ];

    #[test]
    fn integers_look_as_in_c() {
        for (format, value, expected) in INTEGERS {
            assert_eq!(int(format, *value), *expected, "%{format} of {value}");
        }
        assert_eq!(int("lx", -1), "ffffffffffffffff");
        assert_eq!(int("lld", i64::MIN), i64::MIN.to_string());
    }

    const NUMBERS: &[(&str, f64, &str)] = &[
        ("f", 0.0, "0.000000"),
        ("f", 1.234_567_89e8, "123456789.000000"),
        ("f", 9.999_995e4, "99999.950000"),
        (".0f", 0.100_000_001_490_116_12, "0"),
        (".0f", 5e-324, "0"),
        ("#.0f", 1.0, "1."),
        ("#.0f", 0.100_000_001_490_116_12, "0."),
        ("10.3f", 0.0, "     0.000"),
        ("10.3f", -2.5, "    -2.500"),
        ("10.3f", 9.999_995e5, "999999.500"),
        ("-10.3f", 1.0, "1.000     "),
        ("-10.3f", f64::INFINITY, "inf       "),
        ("010.3f", 0.0, "000000.000"),
        ("010.3f", 5e-324, "000000.000"),
        ("+.1f", 0.0, "+0.0"),
        ("+.1f", f64::NAN, "+nan"),
        ("e", 1.0, "1.000000e+00"),
        ("e", f64::NEG_INFINITY, "-inf"),
        (".0e", 0.0, "0e+00"),
        (".0e", 1.234_567_89e8, "1e+08"),
        (".0e", 9.999_995e4, "1e+05"),
        ("#.0e", 0.100_000_001_490_116_12, "1.e-01"),
        ("#.0e", 5e-324, "5.e-324"),
        ("12.4e", 1.0, "  1.0000e+00"),
        ("12.4e", 0.100_000_001_490_116_12, "  1.0000e-01"),
        ("E", 1.0, "1.000000E+00"),
        ("E", 0.100_000_001_490_116_12, "1.000000E-01"),
        ("g", 0.0, "0"),
        ("g", -2.5, "-2.5"),
        ("g", 9.999_995e4, "99999.9"),
        ("G", 1.0, "1"),
        ("G", 5e-324, "4.94066E-324"),
        ("G", -0.0, "-0"),
        (".3g", 0.100_000_001_490_116_12, "0.1"),
        (".3g", f64::NAN, "nan"),
        ("#g", 0.100_000_001_490_116_12, "0.100000"),
        ("#g", f64::NEG_INFINITY, "-inf"),
        (".0g", -2.5, "-2"),
        (".0g", 1.234_567_89e8, "1e+08"),
        (".10g", 1.0, "1"),
        (".10g", 0.100_000_001_490_116_12, "0.1000000015"),
        (".10g", -0.0, "-0"),
        ("012g", 1.0, "000000000001"),
        ("012g", f64::NAN, "         nan"),
        ("a", 1.0, "0x1p+0"),
        ("a", f64::NEG_INFINITY, "-inf"),
        (".2a", 0.0, "0x0.00p+0"),
        (".2a", 1.234_567_89e8, "0x1.d7p+26"),
        (".2a", 9.999_995e4, "0x1.87p+16"),
        ("A", 0.100_000_001_490_116_12, "0X1.99999AP-4"),
        ("A", 5e-324, "0X0.0000000000001P-1022"),
        (".15a", 1.0, "0x1.000000000000000p+0"),
        (".15a", 0.100_000_001_490_116_12, "0x1.99999a000000000p-4"),
        ("+a", 1.0, "+0x1p+0"),
        ("+a", 0.100_000_001_490_116_12, "+0x1.99999ap-4"),
    ];

    #[test]
    fn floating_point_numbers_look_as_in_c() {
        for (format, value, expected) in NUMBERS {
            assert_eq!(float(format, *value), *expected, "%{format} of {value:e}");
        }
    }

    #[test]
    fn strings_and_pointers() {
        assert_eq!(convert("6s", 1), "  text");
        assert_eq!(convert("-6.2s", 1), "te    ");
        assert_eq!(convert("s", 0), "(null)");
        assert_eq!(convert("p", 0x1234), "0x1234");
        assert_eq!(convert("3c", 65), "  A");
    }

    #[test]
    fn fields_are_bounded() {
        assert_eq!(int("99999999999999999999d", 1).len(), FIELD_MAX);
        assert_eq!(float("99999999.99999999f", 1.0).len(), FIELD_MAX + 2);
        assert_eq!(Conversion::parse(b"5"), None);
        assert_eq!(Conversion::parse(b"y"), None);
    }
}
