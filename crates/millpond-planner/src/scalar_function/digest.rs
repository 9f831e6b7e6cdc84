//! Hashes and encodings.

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::common::config::ConfigOptions;
use datafusion::functions::crypto;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF};
use millpond_core::{Error, Result};
use std::sync::Arc;

use super::builtin::{Call, Definition};
use crate::plan_error::from_datafusion;

/// The functions of this file.
pub(super) fn functions() -> Vec<Definition> {
    let f = Definition::new;
    vec![
        f("MD5(text STRING) -> STRING", |c| hashed(c, &crypto::md5())),
        f("SHA1(text STRING) -> STRING", |c| {
            let text = c.text(0)?;
            c.texts(|row| Some(hex(&sha1(text.at(row)?.as_bytes()))))
        }),
        f("SHA224(text STRING) -> STRING", |c| hashed(c, &crypto::sha224())),
        f("SHA256(text STRING) -> STRING", |c| hashed(c, &crypto::sha256())),
        f("SHA384(text STRING) -> STRING", |c| hashed(c, &crypto::sha384())),
        f("SHA512(text STRING) -> STRING", |c| hashed(c, &crypto::sha512())),
        f("SHA2(text STRING, bits INT) -> STRING", sha2),
        f("TO_BASE64(text STRING) -> STRING", |c| {
            let text = c.text(0)?;
            c.texts(|row| Some(to_base64(text.at(row)?.as_bytes())))
        }),
        f("FROM_BASE64(text STRING) -> STRING", |c| {
            let text = c.text(0)?;
            c.try_texts(|row| {
                let Some(text) = text.at(row) else { return Ok(None) };
                let bytes = from_base64(text)
                    .ok_or_else(|| Error::data(format!("FROM_BASE64: '{text}' is no base64")))?;
                Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
            })
        }),
        f("HEX(value ANY) -> STRING", hexed).takes(|given| match given {
            [DataType::Utf8 | DataType::Utf8View | DataType::LargeUtf8 | DataType::Null] => {
                Some(vec![DataType::Utf8])
            }
            [DataType::Binary] => Some(vec![DataType::Binary]),
            [number] if number.is_integer() => Some(vec![DataType::Int64]),
            _ => None,
        }),
        f("UNHEX(text STRING) -> BYTES", |c| {
            let text = c.text(0)?;
            c.binaries(|row| Ok(text.at(row).and_then(unhex)))
        }),
        f("ENCODE(text STRING, charset STRING) -> BYTES", |c| {
            let (text, charset) = (c.text(0)?, c.text(1)?);
            c.binaries(|row| match text.at(row).zip(charset.at(row)) {
                Some((text, charset)) => encode(text, charset).map(Some),
                None => Ok(None),
            })
        }),
        f("DECODE(bytes BYTES, charset STRING) -> STRING", |c| {
            let (bytes, charset) = (c.bytes(0)?, c.text(1)?);
            c.try_texts(|row| match bytes.at(row).zip(charset.at(row)) {
                Some((bytes, charset)) => decode(bytes, charset).map(Some),
                None => Ok(None),
            })
        }),
    ]
}

/// The digest as hexadecimal text.
fn hashed(call: &Call<'_>, function: &ScalarUDF) -> Result<ArrayRef> {
    let (values, _) = call.values(0);
    let digests = digests(values, function)?;
    let text = call.text(0)?;
    // The digests stand beside the values, be they one or one per row.
    let place = |row: usize| if call.is_constant(0) { 0 } else { row };
    call.texts(|row| {
        text.at(row)?;
        Some(digests[place(row)].clone())
    })
}

fn digests(values: &ArrayRef, function: &ScalarUDF) -> Result<Vec<String>> {
    let rows = values.len();
    let given = DataType::Utf8;
    let result = function.return_type(std::slice::from_ref(&given)).map_err(from_datafusion)?;
    let field = |name: &str, data_type: &DataType| {
        Arc::new(arrow::datatypes::Field::new(name, data_type.clone(), true))
    };
    let arguments = ScalarFunctionArgs {
        args: vec![ColumnarValue::Array(Arc::clone(values))],
        arg_fields: vec![field("text", &given)],
        number_rows: rows,
        return_field: field("digest", &result),
        config_options: Arc::new(ConfigOptions::default()),
    };
    let digests = function.invoke_with_args(arguments).map_err(from_datafusion)?;
    let digests = digests.into_array(rows).map_err(from_datafusion)?;
    let shown = |row| -> Result<String> {
        Ok(match ScalarValue::try_from_array(&digests, row).map_err(from_datafusion)? {
            ScalarValue::Binary(Some(bytes)) | ScalarValue::BinaryView(Some(bytes)) => hex(&bytes),
            ScalarValue::Utf8(Some(text)) | ScalarValue::Utf8View(Some(text)) => text,
            _ => String::new(),
        })
    };
    (0..rows).map(shown).collect()
}

fn sha2(call: &Call<'_>) -> Result<ArrayRef> {
    let bits = match call.is_constant(1).then(|| call.int(1)).transpose()? {
        Some(bits) => bits.at(0),
        None => return Err(Error::invalid("the bits of SHA2 must be constant")),
    };
    match bits {
        Some(224) => hashed(call, &crypto::sha224()),
        Some(0 | 256) => hashed(call, &crypto::sha256()),
        Some(384) => hashed(call, &crypto::sha384()),
        Some(512) => hashed(call, &crypto::sha512()),
        None => call.texts(|_| None::<String>),
        Some(other) => Err(Error::invalid(format!("SHA2 has no digest of {other} bits"))
            .with_hint("there are 224, 256, 384 and 512")),
    }
}

/// SHA-1 (FIPS 180-4).
fn sha1(message: &[u8]) -> [u8; 20] {
    let mut padded = message.to_vec();
    padded.push(0x80);
    while padded.len() % 64 != 56 {
        padded.push(0);
    }
    padded.extend((message.len() as u64 * 8).to_be_bytes());
    let mut state = [0x6745_2301u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    for block in padded.chunks_exact(64) {
        sha1_block(&mut state, block);
    }
    let mut digest = [0; 20];
    for (bytes, word) in digest.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

fn sha1_block(state: &mut [u32; 5], block: &[u8]) {
    let mut words = [0u32; 80];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
        *word = bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
    }
    for round in 16..80 {
        let mixed = words[round - 3] ^ words[round - 8] ^ words[round - 14] ^ words[round - 16];
        words[round] = mixed.rotate_left(1);
    }
    let [mut a, mut b, mut c, mut d, mut e] = *state;
    for (round, word) in words.iter().enumerate() {
        let (mixed, constant) = match round / 20 {
            0 => (b & c | !b & d, 0x5a82_7999),
            1 => (b ^ c ^ d, 0x6ed9_eba1),
            2 => (b & c | b & d | c & d, 0x8f1b_bcdc),
            _ => (b ^ c ^ d, 0xca62_c1d6u32),
        };
        let sum = a.rotate_left(5).wrapping_add(mixed).wrapping_add(e);
        let sum = sum.wrapping_add(constant).wrapping_add(*word);
        (e, d, c, b, a) = (d, c, b.rotate_left(30), a, sum);
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d, e]) {
        *word = word.wrapping_add(add);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hexed(call: &Call<'_>) -> Result<ArrayRef> {
    match call.data_type(0) {
        DataType::Int64 => {
            let number = call.int(0)?;
            call.texts(|row| Some(format!("{:X}", number.at(row)?)))
        }
        DataType::Binary => {
            let bytes = call.bytes(0)?;
            call.texts(|row| Some(hex(bytes.at(row)?).to_uppercase()))
        }
        _ => {
            let text = call.text(0)?;
            call.texts(|row| Some(hex(text.at(row)?.as_bytes()).to_uppercase()))
        }
    }
}

/// `None` if the text is not hexadecimal.
fn unhex(text: &str) -> Option<Vec<u8>> {
    let padded = if text.len() % 2 == 1 { format!("0{text}") } else { text.to_owned() };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    padded
        .as_bytes()
        .chunks_exact(2)
        .map(|pair| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8))
        .collect()
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn to_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits =
            chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let sextet = bits >> (18 - 6 * place) & 63;
            text.push(if place <= chunk.len() { BASE64[sextet as usize].into() } else { '=' });
        }
    }
    text
}

/// `None` if it is no base64.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if text.len() - digits.len() > 2 || digits.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut bits, mut count) = (0u32, 0);
    for digit in digits.bytes() {
        let sextet = BASE64.iter().position(|known| *known == digit)? as u32;
        bits = bits << 6 | sextet;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}

fn encode(text: &str, charset: &str) -> Result<Vec<u8>> {
    let single = |limit: u32| text.chars().map(|c| if (c as u32) < limit { c as u8 } else { b'?' }).collect();
    match charset.to_uppercase().as_str() {
        "UTF-8" | "UTF8" => Ok(text.as_bytes().to_vec()),
        "US-ASCII" | "ASCII" => Ok(single(128)),
        "ISO-8859-1" | "LATIN1" => Ok(single(256)),
        "UTF-16BE" => Ok(text.encode_utf16().flat_map(u16::to_be_bytes).collect()),
        "UTF-16LE" => Ok(text.encode_utf16().flat_map(u16::to_le_bytes).collect()),
        "UTF-16" => {
            Ok([0xfe, 0xff].into_iter().chain(text.encode_utf16().flat_map(u16::to_be_bytes)).collect())
        }
        _ => Err(unknown_charset(charset)),
    }
}

fn decode(bytes: &[u8], charset: &str) -> Result<String> {
    let wide = |read: fn([u8; 2]) -> u16, bytes: &[u8]| {
        let units: Vec<u16> = bytes.chunks_exact(2).map(|pair| read([pair[0], pair[1]])).collect();
        String::from_utf16_lossy(&units)
    };
    match charset.to_uppercase().as_str() {
        "UTF-8" | "UTF8" => Ok(String::from_utf8_lossy(bytes).into_owned()),
        "US-ASCII" | "ASCII" => {
            Ok(bytes.iter().map(|b| if *b < 128 { char::from(*b) } else { '\u{fffd}' }).collect())
        }
        "ISO-8859-1" | "LATIN1" => Ok(bytes.iter().copied().map(char::from).collect()),
        "UTF-16LE" => Ok(wide(u16::from_le_bytes, bytes)),
        "UTF-16BE" => Ok(wide(u16::from_be_bytes, bytes)),
        "UTF-16" => Ok(match bytes {
            [0xff, 0xfe, rest @ ..] => wide(u16::from_le_bytes, rest),
            [0xfe, 0xff, rest @ ..] => wide(u16::from_be_bytes, rest),
            _ => wide(u16::from_be_bytes, bytes),
        }),
        _ => Err(unknown_charset(charset)),
    }
}

fn unknown_charset(charset: &str) -> Error {
    Error::invalid(format!("the character set '{charset}' is not known"))
        .with_hint("there are US-ASCII, ISO-8859-1, UTF-8, UTF-16, UTF-16BE and UTF-16LE")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_can_be_undone() {
        assert_eq!(to_base64(b"hello"), "aGVsbG8=");
        for text in ["", "a", "ab", "abc", "grün€"] {
            assert_eq!(from_base64(&to_base64(text.as_bytes())).as_deref(), Some(text.as_bytes()));
            assert_eq!(unhex(&hex(text.as_bytes())).as_deref(), Some(text.as_bytes()));
        }
        assert_eq!(from_base64("a"), None);
        assert_eq!(unhex("xy"), None);
        assert_eq!(decode(&encode("ä€", "UTF-16").unwrap(), "utf-16").unwrap(), "ä€");
    }

    #[test]
    fn sha1_of_known_texts() {
        assert_eq!(hex(&sha1(b"abc")), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert_eq!(hex(&sha1(b"")), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
    }
}
