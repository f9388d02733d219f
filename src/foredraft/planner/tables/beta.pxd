# The types of `beta.py`, where it is compiled (scripts/compile_parts.py).
cimport cython

cdef double _PRIOR_WEIGHT
cdef double _FORGET_AT

cpdef double posterior(double right, double wrong, double prior, double deviations) noexcept

cpdef double cautious(double mean, double total, double deviations) noexcept

cpdef bint forgets(double right, double wrong) noexcept

@cython.final
cdef class Counts:
    cdef readonly double right
    cdef readonly double wrong

    cpdef add(self, bint right)

    cpdef double chance(self, double prior, double deviations) noexcept
