# The types of `suffix_vote.py`, where it is compiled (scripts/compile_parts.py).
cimport cython
from foredraft.drafters.lookup.suffix_index cimport SuffixIndex

cdef int _NOTHING
cdef Py_ssize_t _REACH

@cython.final
cdef class Matches:
    cdef readonly SuffixIndex index
    cdef readonly list ends
    cdef readonly list lengths
    cdef readonly bint past

@cython.final
cdef class Continuation:
    cdef readonly list tokens
    cdef readonly list confidence
    cdef readonly Py_ssize_t match_length
    cdef readonly Py_ssize_t count
    cdef readonly double agree
    cdef readonly bint past
    cdef readonly Py_ssize_t place

@cython.final
cdef class Weighed:
    cdef readonly list indexes
    cdef readonly list ends
    cdef readonly list lengths
    cdef readonly list weights
    cdef public Py_ssize_t own

@cython.final
cdef class Chain:
    cdef readonly list tokens
    cdef readonly list confidence
    cdef readonly double latest
    cdef readonly double first_share
    cdef SuffixIndex _index
    cdef Py_ssize_t _end
    cdef Py_ssize_t _period
    cdef bint _goes_round
    cdef Py_ssize_t _length
    cdef Py_ssize_t _count
    cdef bint _past
    cdef list _estimates
    cdef Weighed _those
    cdef list _others
    cdef double _behind

    @cython.locals(at=Py_ssize_t, token=int, share=double, matched=Py_ssize_t)
    cpdef bint goes_on(self) except? -1

    cpdef drop(self)

    @cython.locals(before=double, i=Py_ssize_t, said=int, index=SuffixIndex, those=Weighed, going_on=list)
    cdef double _agreeing(self, Py_ssize_t at, int token) except? -7

@cython.locals(group=Matches, those=Weighed, longest=Py_ssize_t, rank=Py_ssize_t, length=Py_ssize_t, by=double)
cpdef Weighed weighed(object matches)

@cython.locals(totals=dict, firsts=list, i=Py_ssize_t, token=int, index=SuffixIndex, chosen=int, most=double,
               total=double, leader=Py_ssize_t, heaviest=double)
cdef Py_ssize_t _leader(Weighed those) except? -7

@cython.locals(doubt=double)
cpdef double trust(Py_ssize_t length, bint past) except? -7

@cython.locals(odds=double)
cpdef double fitted(double raw, Py_ssize_t count) except? -7

cdef list _estimates(Py_ssize_t count, bint past)

@cython.locals(levels=tuple, past=bint, level=Py_ssize_t, width=Py_ssize_t, deeper=Py_ssize_t, found=list,
               lengths=list, least=Py_ssize_t)
cpdef Matches longest_matches(SuffixIndex index, SuffixIndex text, Py_ssize_t shortest, Py_ssize_t limit,
                              double min_chance=*)

@cython.locals(those=Weighed, leader=Py_ssize_t, chain=Chain, survival=double)
cpdef Continuation vote(list matches, Py_ssize_t limit, double min_survival=*)
