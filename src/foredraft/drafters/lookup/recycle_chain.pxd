# The types of `recycle_chain.py`, where it is compiled (scripts/compile_parts.py).
cimport cython
from foredraft.drafters.lookup.recycle_table cimport SuccessorTable

@cython.final
cdef class Reader:
    cdef SuccessorTable _table
    cdef unsigned long long _offset
    cdef unsigned long long _secret
    cdef long long _number
    cdef readonly Py_ssize_t place
    cdef readonly int token
    cdef readonly double chance
    cdef readonly int matched
    cdef readonly int times
    cdef readonly bint own

    @cython.locals(table=SuccessorTable, pair=Py_ssize_t, single=Py_ssize_t, agreed=bint)
    cpdef bint look(self, long long before, long long last) except? -1

    cdef int _take(self, Py_ssize_t place, int matched) except -1

    @cython.locals(tokens=list, confidence=list, survival=double, found=bint, token=int)
    cpdef tuple chain(self, long long last, Py_ssize_t most, double least, object ends)
