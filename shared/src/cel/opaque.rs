//! Values of types that only functions look into.

use std::any::Any;

/// Value of an opaque type, which only functions look into.
pub trait Opaque: Any + Send + Sync + std::fmt::Debug {
    /// The name of its type.
    fn type_name(&self) -> &'static str;
    /// Reports whether two values are equal.
    fn equals(&self, other: &dyn Opaque) -> bool;
    /// Size of the value; `None` when it has none.
    fn size(&self) -> Option<u64> {
        None
    }
    /// Text in messages.
    fn shown(&self) -> String {
        self.type_name().to_owned()
    }
    /// For looking inside.
    fn any(&self) -> &dyn Any;
}

/// Makes a type opaque: its name in expressions.
macro_rules! opaque {
    ($type:ty, $name:expr) => {
        $crate::cel::opaque::opaque!($type, $name, |_| None, |_| $name.to_owned());
    };
    ($type:ty, $name:expr, $size:expr, $shown:expr) => {
        impl $crate::cel::opaque::Opaque for $type {
            fn size(&self) -> Option<u64> {
                let size: fn(&Self) -> Option<u64> = $size;
                size(self)
            }

            fn shown(&self) -> String {
                let shown: fn(&Self) -> String = $shown;
                shown(self)
            }

            fn type_name(&self) -> &'static str {
                $name
            }

            fn equals(&self, other: &dyn $crate::cel::opaque::Opaque) -> bool {
                other.any().downcast_ref::<Self>().is_some_and(|o| o == self)
            }

            fn any(&self) -> &dyn std::any::Any {
                self
            }
        }
    };
}
pub(super) use opaque;
