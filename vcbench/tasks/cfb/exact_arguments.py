"""Which arguments of ComplexFuncBench's functions decide a call, and which calls are optional.

Facts about the benchmark, written out here so that scoring needs no file.
Source: THUDM/ComplexFuncBench, utils/exact_match_values.json and utils/compare_method.py; the data set is Apache-2.0.
"""

from __future__ import annotations

_TABLE = {
    "Search_Hotels_By_Coordinates": "arrival_date currency_code departure_date languagecode latitude longitude",
    "Get_Room_List_With_Availability": "arrival_date currency_code departure_date hotel_id languagecode",
    "Get_Room_Availability": "currency_code hotel_id",
    "Get_Question_And_Answer": "hotel_id languagecode",
    "Get_Nearby_Cities": "languagecode latitude longitude",
    "Get_Popular_Attraction_Near_By": "hotel_id languagecode",
    "Get_Hotel_Reviews(Tips)": "hotel_id languagecode sort_option_id",
    "Get_Hotel_Reviews(Tips)_Sort_Option": "hotel_id languagecode",
    "Get_Hotel_Review_Scores": "hotel_id languagecode",
    "Get_Hotel_Reviews_Filter_Metadata": "hotel_id languagecode",
    "Property_Children_Policies": "hotel_id languagecode",
    "Get_Hotel_Policies": "hotel_id languagecode",
    "Get_Room_List": "arrival_date currency_code departure_date hotel_id languagecode",
    "Get_Description_And_Info": "hotel_id languagecode",
    "Get_Hotel_Details": "arrival_date currency_code departure_date hotel_id languagecode",
    "Get_Filter": "arrival_date categories_filter departure_date dest_id languagecode search_type",
    "Search_Hotel_Destination": "",
    "Get_Sort_By": "arrival_date departure_date dest_id languagecode search_type",
    "Payment_features_of_the_Hotel": "hotel_id languagecode",
    "Search_Hotels": "arrival_date categories_filter currency_code departure_date "
    "dest_id languagecode search_type sort_by",
    "Search_Car_Rentals": "currency_code drop_off_date drop_off_latitude drop_off_longitude "
    "drop_off_time languagecode pick_up_date pick_up_longitude pick_up_time",
    "Search_Car_Location": "languagecode",
    "Booking_Summary": "currency_code languagecode search_key vehicle_id",
    "Vehicle_Supplier_Ratings": "currency_code languagecode search_key vehicle_id",
    "Vehicle_Details": "currency_code languagecode search_key vehicle_id",
    "Vehicle_Supplier_Details": "currency_code languagecode search_key vehicle_id",
    "Get_Packages": "currency_code languagecode search_key vehicle_id",
    "Vehicle_Supplier_Review": "languagecode search_key vehicle_id",
    "Location_to_Lat_Long": "",
    "Get_Exchange_Rates": "",
    "Get_Currency": "",
    "Get_Languages": "",
    "Get_Attraction_Details": "currency_code languagecode slug",
    "Search_Attractions": "currency_code endDate id languagecode startDate",
    "Get_Availability_Calendar": "id languagecode",
    "Get_Availability": "currency_code date languagecode slug",
    "Search_Attraction_Location": "languagecode",
    "Get_Min_Price_Multi_Stops": "currency_code",
    "Get_Flight_Details": "currency_code token",
    "Get_Min_Price": "currency_code departDate fromId returnDate toId",
    "Get_Seat_Map": "currency_code offerToken",
    "Search_Flights_Multi_Stops": "currency_code sort",
    "Search_Flights": "currency_code departDate fromId returnDate sort toId",
    "Search_Flight_Location": "languagecode",
    "Search_Taxi": "currency_code drop_off_place_id languagecode pick_up_date pick_up_place_id pick_up_time",
    "Taxi_Search_Location": "languagecode",
}
EXACT_ARGUMENTS: dict[str, tuple[str, ...]] = {name: tuple(arguments.split()) for name, arguments in _TABLE.items()}
"""By function, the arguments that are compared exactly."""

FREE_FUNCTIONS = (
    "Location_to_Lat_Long",
    "Search_Hotel_Destination",
    "Search_Attraction_Location",
    "Search_Car_Location",
    "Search_Flight_Location",
    "Taxi_Search_Location",
)
"""Look-ups that a model may leave out, or make at any time."""
