//! Kinds of joins, by what the output says of a row beside its pairs.

use super::retention::JoinRetention;

/// Which rows a join gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinKind {
    /// Pairs.
    Inner,
    /// Pairs, and left rows without a partner.
    Left,
    /// Pairs, and right rows without a partner.
    Right,
    /// Pairs, and rows of both sides without a partner.
    Full,
    /// Left rows with a partner.
    Semi,
    /// Left rows without a partner.
    Anti,
}

/// When a row is part of the output by itself, the other side's columns being NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lone {
    Never,
    /// While it has a partner.
    Matched,
    /// While it has none; its appearance may be taken back.
    Unmatched,
    /// Once it is certain that it will never have one.
    UnmatchedForEver,
}

impl Lone {
    /// Whether a row with so many partners is shown, as far as partners decide.
    pub(super) fn wants(self, partners: u32) -> bool {
        match self {
            Lone::Never => false,
            Lone::Matched => partners > 0,
            Lone::Unmatched | Lone::UnmatchedForEver => partners == 0,
        }
    }

    /// Whether rows of the side can be shown without a partner.
    pub(super) fn shows_unmatched(self) -> bool {
        match self {
            Lone::Never | Lone::Matched => false,
            Lone::Unmatched | Lone::UnmatchedForEver => true,
        }
    }
}

impl JoinKind {
    /// The name in SQL.
    pub fn name(self) -> &'static str {
        match self {
            JoinKind::Inner => "inner",
            JoinKind::Left => "left",
            JoinKind::Right => "right",
            JoinKind::Full => "full",
            JoinKind::Semi => "semi",
            JoinKind::Anti => "anti",
        }
    }

    /// Whether pairs are part of the output.
    pub fn shows_pairs(self) -> bool {
        match self {
            JoinKind::Inner | JoinKind::Left | JoinKind::Right | JoinKind::Full => true,
            JoinKind::Semi | JoinKind::Anti => false,
        }
    }

    /// Whether left rows, right rows, are given though they have no partner.
    pub fn keeps_unmatched(self) -> (bool, bool) {
        match self {
            JoinKind::Inner | JoinKind::Semi => (false, false),
            JoinKind::Left | JoinKind::Anti => (true, false),
            JoinKind::Right => (false, true),
            JoinKind::Full => (true, true),
        }
    }

    /// Whether the output only grows, if both inputs do: rows without a partner must then wait
    /// until the watermark says that they will have none.
    pub fn appends(self, retention: JoinRetention) -> bool {
        let (left, right) = self.keeps_unmatched();
        (!left || retention.left.is_some()) && (!right || retention.right.is_some())
    }

    /// What the left side, the right side, shows by itself.
    pub(super) fn lone(self, retention: JoinRetention) -> (Lone, Lone) {
        let unmatched = |side: bool, bounded: bool| match (side, bounded) {
            (false, _) => Lone::Never,
            (true, false) => Lone::Unmatched,
            (true, true) => Lone::UnmatchedForEver,
        };
        let (left, right) = self.keeps_unmatched();
        let lone = (unmatched(left, retention.left.is_some()), unmatched(right, retention.right.is_some()));
        if self == JoinKind::Semi { (Lone::Matched, Lone::Never) } else { lone }
    }
}
