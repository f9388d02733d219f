# The types of `reading.py`, where it is compiled (scripts/compile_parts.py).
cimport cython
from foredraft.planner.tables.agreement cimport Agreement
from foredraft.planner.tables.cells cimport Cells
from foredraft.planner.tables.lexical cimport Lexical

cdef double _DEFAULT_CONFIDENCE
cdef double _LEAST
cdef double _MOST
cdef double _PRIOR_WEIGHT
cdef long long _NONE
cdef Py_ssize_t _MOST_MATCHED
cdef Py_ssize_t _ROW
cdef Py_ssize_t _TOKEN
cdef Py_ssize_t _CELL
cdef Py_ssize_t _PRIOR
cdef Py_ssize_t _ODDS
cdef Py_ssize_t _ALONE
cdef Py_ssize_t _OWN
cdef Py_ssize_t _OTHER
cdef Py_ssize_t _SAME

@cython.final
cdef class Reading:
    cdef Cells _cells
    cdef Agreement _agreement
    cdef Lexical _lexical
    cdef object _array
    cdef double[::1] _rows
    cdef readonly object source
    cdef readonly tuple parents
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t company
    cdef readonly Py_ssize_t spoken
    cdef tuple _tokens
    cdef tuple _confidence
    cdef list _depths
    cdef Py_ssize_t _sure
    cdef Py_ssize_t _filled
    cdef Py_ssize_t _moved
    cdef Py_ssize_t _place
    cdef Py_ssize_t _weights
    cdef Py_ssize_t _match
    cdef long long _last
    cdef long long _origin

    cpdef begin(self, object draft, long long last)

    @cython.locals(i=Py_ssize_t, at=Py_ssize_t, confidence=double)
    cdef int _fill(self, Py_ssize_t count) except -1

    @cython.locals(match=Py_ssize_t)
    cdef Py_ssize_t _matched(self, Py_ssize_t i) except -1

    cdef int _need(self, Py_ssize_t i) except -1

    @cython.locals(at=Py_ssize_t)
    cdef Py_ssize_t _before(self, Py_ssize_t i) except? -7

    cdef Py_ssize_t _following(self, Py_ssize_t i) except? -7

    @cython.locals(at=Py_ssize_t)
    cdef double odds(self, Py_ssize_t i) except? -7

    @cython.locals(cell=Py_ssize_t)
    cdef double alone(self, Py_ssize_t i, double caution) except? -7

    cpdef double chance(self, Py_ssize_t i, double caution) except? -7

    @cython.locals(i=Py_ssize_t)
    cpdef list chances(self, double caution)

    @cython.locals(i=Py_ssize_t, survival=double, survivals=list)
    cpdef list estimate(self, double caution, double least=*)

    @cython.locals(i=Py_ssize_t, at=Py_ssize_t, cell=Py_ssize_t, company=Py_ssize_t, together=double, alone=double,
                   mixed=double, total=double, rest=double)
    cdef list _together(self, list survivals, double caution)

    @cython.locals(i=Py_ssize_t, parent=Py_ssize_t, chance=double, survivals=list)
    cdef list _estimate_tree(self, double caution)

    @cython.locals(error=double, token=cython.longlong)
    cpdef int add(self, Py_ssize_t i, double chance, bint right) except -1

    @cython.locals(at=Py_ssize_t, own=double, other=double, mixed=double, chance=double)
    cpdef double learn(self, Py_ssize_t i, bint right) except? -7

    cpdef Py_ssize_t said(self, Py_ssize_t i) except? -7

    cpdef bint agrees(self, Py_ssize_t i) except? -1

    @cython.locals(most=Py_ssize_t, same=Py_ssize_t)
    cdef Py_ssize_t common(self, Reading other) except -1

    @cython.locals(i=Py_ssize_t)
    cdef int speak(self, Py_ssize_t count) except -1

    @cython.locals(others=list, agreeing=list, other=Reading, at=Py_ssize_t, surest=double, same=bint, agrees=bint)
    cdef int meet(self, list readings) except -1

@cython.locals(count=Py_ssize_t, reading=Reading)
cpdef meet(list readings)

@cython.locals(chains=list, longest=Py_ssize_t, i=Py_ssize_t, k=Py_ssize_t, reading=Reading, other=Reading)
cdef Py_ssize_t _shared(list readings) except -1

cpdef list depths(object parents)
