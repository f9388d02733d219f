# The types of `calibration.py`, where it is compiled (scripts/compile_parts.py).
cimport cython
from foredraft.planner.tables.agreement cimport Agreement
from foredraft.planner.tables.cells cimport Cells
from foredraft.planner.tables.lexical cimport Lexical
from foredraft.planner.tables.reading cimport Reading
from foredraft.planner.tables.reliability cimport ReliabilityTable

@cython.final
cdef class Score:
    cdef readonly object source
    cdef readonly Py_ssize_t right
    cdef readonly Py_ssize_t wrong

@cython.final
cdef class Survival:
    cdef Cells _cells
    cdef readonly Lexical lexical
    cdef readonly Agreement agreement
    cdef readonly ReliabilityTable reliability
    cdef dict _shadow
    cdef list _spare

    @cython.locals(readings=list, reading=Reading)
    cdef list _read(self, object drafts, long long last)

    cdef int _done(self, list readings) except -1

    @cython.locals(reading=Reading)
    cpdef list conditional(self, object draft, double caution=*, long long last=*)

    @cython.locals(reading=Reading)
    cpdef list estimate(self, object draft, double caution=*, long long last=*)

    @cython.locals(readings=list, fresh=list, found=list, reading=Reading)
    cpdef list estimates(self, object drafts, double caution=*, object request=*, double least=*)

    @cython.locals(readings=list)
    cpdef remember(self, object request, object drafts, long long last=*)

    @cython.locals(readings=list, found=list, reading=Reading)
    cpdef list score(self, object request, object outcome)

    @cython.locals(i=Py_ssize_t, token=cython.longlong, right=bint)
    cdef Score _score(self, Reading reading, object emitted)

    @cython.locals(depth=Py_ssize_t, token=cython.longlong, i=Py_ssize_t, node=Py_ssize_t, chance=double, tried=list,
                   children=dict)
    cdef Score _score_tree(self, Reading reading, object emitted)

    @cython.locals(readings=list)
    cpdef forget(self, object request)
