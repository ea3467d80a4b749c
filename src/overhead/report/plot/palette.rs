//! Colours that stay apart for eyes that do not see all of them: those of Okabe and Ito, and a scale from light to dark.

use plotters::style::RGBColor;

use super::super::answer::{IN_PROCESS, OVER_HTTP};

/// Text and lines that carry meaning.
pub(super) const INK: RGBColor = RGBColor(0x1f, 0x29, 0x33);
/// Text that explains.
pub(super) const MUTED: RGBColor = RGBColor(0x52, 0x60, 0x6d);
/// Lines behind the data.
pub(super) const GRID: RGBColor = RGBColor(0xe1, 0xe5, 0xea);
/// The model's work, which the rest is seen against.
pub(super) const MODEL: RGBColor = RGBColor(0xb4, 0xbd, 0xc8);
/// The serve's process.
pub(super) const SERVE: RGBColor = RGBColor(0x6b, 0x77, 0x85);
/// Getting rows.
pub(super) const ROWS: RGBColor = RGBColor(0xe6, 0x9f, 0x00);
/// Folding them into proofs.
pub(super) const PROOF: RGBColor = RGBColor(0x00, 0x72, 0xb2);
/// What should not be.
pub(super) const WRONG: RGBColor = RGBColor(0xd5, 0x5e, 0x00);

/// A backend's colour: the two that are measured have the same in all reports, others go by their place.
pub(super) fn backend(name: &str, place: usize) -> RGBColor {
    const OTHERS: [RGBColor; 2] = [RGBColor(0x00, 0x9e, 0x73), RGBColor(0xa8, 0x4f, 0x86)];
    match name {
        IN_PROCESS => RGBColor(0x00, 0x72, 0xb2),
        OVER_HTTP => RGBColor(0xd5, 0x5e, 0x00),
        _ => OTHERS[place % OTHERS.len()],
    }
}

/// A share of 0 to 1 from light to dark blue.
pub(super) fn heat(share: f64) -> RGBColor {
    const STOPS: [RGBColor; 5] = [
        RGBColor(0xf3, 0xf8, 0xfd),
        RGBColor(0xc6, 0xdb, 0xef),
        RGBColor(0x6b, 0xae, 0xd6),
        RGBColor(0x21, 0x71, 0xb5),
        RGBColor(0x08, 0x30, 0x6b),
    ];
    let place = share.clamp(0.0, 1.0) * (STOPS.len() - 1) as f64;
    let stop = (place as usize).min(STOPS.len() - 2);
    mix(STOPS[stop], STOPS[stop + 1], place - stop as f64)
}

/// Text that can be read on a colour: dark, or white where that has more contrast.
pub(super) fn text_on(RGBColor(red, green, blue): RGBColor) -> RGBColor {
    let light = |channel: u8| (f64::from(channel) / 255.0).powf(2.2);
    let luminance = 0.2126 * light(red) + 0.7152 * light(green) + 0.0722 * light(blue);
    if luminance < 0.2 { RGBColor(0xff, 0xff, 0xff) } else { INK }
}

/// A colour, lighter by a share of what white has more.
pub(super) fn lighter(colour: RGBColor, share: f64) -> RGBColor {
    mix(colour, RGBColor(0xff, 0xff, 0xff), share)
}

fn mix(from: RGBColor, to: RGBColor, share: f64) -> RGBColor {
    let between = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * share).round() as u8;
    RGBColor(between(from.0, to.0), between(from.1, to.1), between(from.2, to.2))
}
